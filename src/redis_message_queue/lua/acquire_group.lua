-- acquire_group.lua: makes a streaming query the holder of its consumer group, or lets it stay the holder.
-- KEYS  group | groups
-- ARGV  whose: the group's name | holder: who calls | lease_us (number): how long it may be silent, 0 to leave
--       after (number): the epoch that the caller follows; one less than its own if it is already the holder
--       renews (flag): 1 if it is already the holder. It does not become one anew: if its epoch is gone, its claims are
-- Returns {taken, epoch, wait_us}
--       taken: 1 if the caller is the holder, in this epoch; else 0, and this is the epoch of another holder
--       wait_us: how long the other one may still be silent
--@include clock
local state = redis.call('HMGET', group, 'epoch', 'holder', 'deadline')
local epoch, deadline = tonumber(state[1] or 0), tonumber(state[3] or 0)
if not epoch or not deadline then error('the group holds a foreign value', 0) end
if not renews then redis.call('HLEN', groups) end

local remains = epoch == after + 1 and state[2] == holder
if not remains and (renews or epoch ~= after or deadline > now) then return {0, epoch, math.max(deadline - now, 0)} end
-- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
redis.call('HDEL', group, '')
redis.call('HSET', group, 'epoch', after + 1, 'holder', holder, 'deadline', string.format('%.0f', now + lease_us))
if not renews then redis.call('HSETNX', groups, whose, 0) end
return {1, after + 1, 0}
