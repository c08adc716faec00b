-- lib/held.lua: the messages that a caller says it holds.
-- Given `tokens`, one behind the other: 16 bytes of id and 20 that no other claim has. With leases (`leased`) a token
-- is a member of `leases`; without, it is the field of `processing` that holds the message, and nothing else is kept.
-- Whoever has lost a message finds neither, also where a stale replica was promoted.
if #tokens > 36000 then error('at most 1,000 messages in one call', 0) end
local ids, members = {}, {}
for at = 1, #tokens, 36 do
  ids[#ids + 1] = string.sub(tokens, at, at + 15)
  members[#members + 1] = string.sub(tokens, at, at + 35)
end
local fields = leased and ids or members -- of `processing`

-- Whether each is held, given what lies in `processing`. A lease that had run out may lie among its tenant's returned
-- messages, where nobody has taken it yet: those are noted by tenant in `came_back`. Needs envelope and lines.
local came_back = {}
local function find_leases(bodies)
  if not leased then return bodies end
  local deadlines = redis.call('ZMSCORE', leases, unpack(members))
  for nth, member in ipairs(members) do
    local stored = not deadlines[nth] and bodies[nth]
    if stored and is_message(stored) then
      local tenant = tenant_of(stored)
      deadlines[nth] = redis.call('ZSCORE', returned .. tenant, member)
      if deadlines[nth] then
        redis.call('ZCARD', tenants)
        check_line(tenant)
        came_back[tenant] = came_back[tenant] or {}
        table.insert(came_back[tenant], member)
      end
    end
  end
  return deadlines
end
