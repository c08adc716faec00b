-- renew.lua: gives new leases to messages that the caller still owns.
-- KEYS  processing | leases | pending | tenant_ring
-- ARGV  lease_us (number): length of a lease | tenant_pending | expired | tokens
-- Returns '1' or '0' for each message: renewed, or lost.
-- It needs no reply cache: a repetition does the same, and the token keeps out a caller that lost the lease.
local leased = true
--@include owned
--@include clock
local deadline = now + lease_us

-- Only messages without a lease have to be read.
local bodies = {}
for nth, owned_until in ipairs(redis.call('ZMSCORE', leases, unpack(members))) do
  bodies[nth] = not owned_until and redis.call('HGET', processing, ids[nth])
end
local marks, deadlines = {}, {}
local owned, expired_by_tenant = find_leases(bodies)
for nth, owned_until in ipairs(owned) do
  if owned_until then
    marks[nth] = '1'
    deadlines[#deadlines + 1] = deadline + nth
    deadlines[#deadlines + 1] = members[nth]
  else
    marks[nth] = '0'
  end
end

if #deadlines > 0 then
  -- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
  redis.call('ZREM', leases, '')
  redis.call('ZADD', leases, unpack(deadlines))
  for tenant, expired_members in pairs(expired_by_tenant) do remove_expired(tenant, expired_members) end
end
return table.concat(marks)
