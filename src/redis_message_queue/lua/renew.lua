-- renew.lua: leases begin anew, as far as the caller still holds them.
-- KEYS  leases: id by deadline | deliveries: id to lease number and count
-- ARGV  lease_us: length of a lease | then id, lease number, id, lease number, ...
-- Returns '1' or '0' for each message: renewed, or lost.
-- It needs no reply cache: sent twice it does the same, and the lease number keeps out whoever has lost it.
local leases, deliveries = KEYS[1], KEYS[2]
if #ARGV > 2001 then error('at most 1,000 messages in one call', 0) end
local time = redis.call('TIME')
local deadline = time[1] * 1000000 + time[2] + tonumber(ARGV[1])

local marks, held, deadlines = {}, {}, {}
for place = 2, #ARGV, 2 do
  local id = ARGV[place]
  local entry = redis.call('HGET', deliveries, id)
  local lease = not entry and '1' or string.match(entry, '^(%d+):%d+$')
  if not lease then error('the deliveries hash holds a foreign value', 0) end
  if lease == ARGV[place + 1] and redis.call('ZSCORE', leases, id) then
    held[#held + 1] = id
    marks[#marks + 1] = '1'
    deadlines[#deadlines + 1] = deadline + #held
    deadlines[#deadlines + 1] = id
  else
    marks[#marks + 1] = '0'
  end
end

if #held > 0 then
  -- A first write that a server without memory accepts, for a lease must not end for that. It removes nothing: a key
  -- that it emptied would count as moved in a slot that is leaving, and ZADD would fail.
  redis.call('ZREM', leases, '')
  redis.call('ZADD', leases, unpack(deadlines))
end
return table.concat(marks)
