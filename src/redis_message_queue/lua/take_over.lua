-- take_over.lua: a streaming query becomes the holder of its consumer group, or remains it.
-- KEYS  group: what is known of the consumer group | groups: how many messages lie in each
-- ARGV  whose: the group's name | holder: who calls | lease_us: how long it may be silent, 0 to leave
--       after: the epoch that the caller comes after; one less than its own if it is the holder already
-- Returns {taken, epoch, wait_us}
--       taken: 1 if the caller is the holder, in this epoch; else 0, and this is somebody else's epoch
--       wait_us: how long that one may still be silent
local group, groups = KEYS[1], KEYS[2]
local whose, holder, lease_us, after = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', group, 'epoch', 'holder', 'deadline')
local epoch, deadline = tonumber(state[1] or 0), tonumber(state[3] or 0)
if not epoch or not deadline then error('the group holds a foreign value', 0) end
redis.call('HLEN', groups)

local remains = epoch == after + 1 and state[2] == holder
if not remains and (epoch ~= after or deadline > now) then return {0, epoch, math.max(deadline - now, 0)} end
-- The first write is one that a server without memory accepts. It removes nothing.
redis.call('HDEL', group, '')
redis.call('HSET', group, 'epoch', after + 1, 'holder', holder, 'deadline', string.format('%.0f', now + lease_us))
redis.call('HSETNX', groups, whose, 0)
return {1, after + 1, 0}
