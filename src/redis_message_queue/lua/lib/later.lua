-- lib/later.lua: messages that wait for their time. `delayed` has their ids by due time, `later` what they are.
-- The member 'd' of `leases` is the alarm: due when the first of them is, or earlier, never later.

-- Given ids by due time (due, id, due, id, ...) and bodies (id, stored, ...). Returns whether one of them is the next.
local function put_off(due_times, bodies)
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  redis.call('HSET', later, unpack(bodies))
  redis.call('ZADD', delayed, unpack(due_times))
  local soonest = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  if soonest == first then return false end
  redis.call('ZADD', leases, soonest, 'd')
  return true
end
