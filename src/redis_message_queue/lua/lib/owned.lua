-- lib/owned.lua: the messages that the caller says it owns.
-- Needs  tokens, leased, leases, tenant_ring, expired
-- Makes  ids, members, fields, find_leases
-- `tokens` has one token after the other: 16 bytes of id and 20 that no other claim has. With leases, a token is a
-- member of `leases`; without, it is the field of `processing` that holds the message. A caller that lost a message
-- finds neither, also after a failover to a stale replica.
--@include envelope
--@include tenants
local ids, members = {}, {}
if #tokens > 36 * MAX_MESSAGES then error(TOO_MANY, 0) end
for at = 1, #tokens, 36 do
  local nth = (at + 35) / 36
  ids[nth], members[nth] = string.sub(tokens, at, at + 15), string.sub(tokens, at, at + 35)
end
local fields = leased and ids or members -- of `processing`

-- Takes what `processing` holds for each. Returns for each whether the caller owns it; and the members that wait among
-- the expired messages of their tenant, by tenant: their lease ran out, and nobody has claimed them since.
local function find_leases(bodies)
  if not leased then return bodies, {} end
  local deadlines, expired_by_tenant = redis.call('ZMSCORE', leases, unpack(members)), {}
  for nth, member in ipairs(members) do
    local stored = not deadlines[nth] and bodies[nth]
    if stored and is_message(stored) then
      local tenant = tenant_of(stored)
      deadlines[nth] = redis.call('ZSCORE', expired .. tenant, member)
      if deadlines[nth] then
        redis.call('ZCARD', tenant_ring)
        check_tenant(tenant)
        expired_by_tenant[tenant] = expired_by_tenant[tenant] or {}
        table.insert(expired_by_tenant[tenant], member)
      end
    end
  end
  return deadlines, expired_by_tenant
end
