-- renew.lua: leases begin anew, as far as the caller still holds them.
-- KEYS  leases: id by deadline | deliveries: id to lease number and count
-- ARGV  lease_us: length of a lease | then id, lease number, id, lease number, ...
-- Returns '1' or '0' for each message: renewed, or lost.
-- It needs no reply cache: sent twice it does the same, and the lease number keeps out whoever has lost it.
--@include clock
--@include ledger
local leases, deliveries = KEYS[1], KEYS[2]
local lease_us = tonumber(ARGV[1])

local marks, held, deadlines = {}, {}, {}
local deadline = now_us() + lease_us
for place = 2, #ARGV, 2 do
  local id = ARGV[place]
  local lease = read_entry(redis.call('HGET', deliveries, id), 1)
  local mine = lease == tonumber(ARGV[place + 1]) and redis.call('ZSCORE', leases, id)
  marks[#marks + 1] = mine and '1' or '0'
  if mine then
    held[#held + 1] = id
    deadlines[#deadlines + 1] = deadline + #held
    deadlines[#deadlines + 1] = id
  end
end

if #held > 0 then
  -- Removed first because ZADD alone is refused by a server without memory, and a lease must not end for that.
  redis.call('ZREM', leases, unpack(held))
  redis.call('ZADD', leases, unpack(deadlines))
end
return table.concat(marks)
