-- renew.lua: leases begin anew, as far as the caller still holds them.
-- KEYS  processing: id to stored message | leases: id and nonce by deadline
--       pending: the line of messages without a tenant | tenants: those with work, by virtual time
-- ARGV  lease_us: length of a lease | line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with | tokens: the leases, one behind the other
-- Returns '1' or '0' for each message: renewed, or lost.
-- It needs no reply cache: sent twice it does the same, and the token keeps out whoever has lost the lease.
local processing, leases, pending, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease_us, line, returned, tokens = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local size, weights, leased = nil, nil, true -- nobody enters a line here
--@include envelope
--@include lines
--@include held
local time = redis.call('TIME')
local deadline = time[1] * 1000000 + time[2] + lease_us

-- Only those whose lease has run out have to be looked at.
local bodies = {}
for nth, held_until in ipairs(redis.call('ZMSCORE', leases, unpack(members))) do
  bodies[nth] = not held_until and redis.call('HGET', processing, ids[nth])
end
local marks, deadlines = {}, {}
for nth, held_until in ipairs(find_leases(bodies)) do
  if held_until then
    marks[nth] = '1'
    deadlines[#deadlines + 1] = deadline + nth
    deadlines[#deadlines + 1] = members[nth]
  else
    marks[nth] = '0'
  end
end

if #deadlines > 0 then
  -- A first write that a server without memory accepts, for a lease must not end for that. It removes nothing: a key
  -- that it emptied would count as moved in a slot that is leaving, and ZADD would fail.
  redis.call('ZREM', leases, '')
  redis.call('ZADD', leases, unpack(deadlines))
  for tenant, theirs in pairs(came_back) do leave_returned(tenant, theirs) end
end
return table.concat(marks)
