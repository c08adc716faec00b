-- lib/delayed.lua: stores messages until they are due.
-- Needs  delayed, delayed_messages, leases
-- Makes  delay_messages
-- The member 'd' of `leases` is an alarm: due when the first delayed message is, or earlier, never later.

-- Takes ids by due time (due, id, due, id, ...) and bodies (id, stored, ...). Returns whether one of them is due next.
local function delay_messages(due_times, bodies)
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  redis.call('HSET', delayed_messages, unpack(bodies))
  redis.call('ZADD', delayed, unpack(due_times))
  local soonest = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  if soonest == first then return false end
  redis.call('ZADD', leases, soonest, 'd')
  return true
end
