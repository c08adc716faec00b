-- lib/tick_alarm.lua: keeps the alarm for the next tick of a schedule.
-- Needs  schedules, leases
-- Makes  set_tick_alarm
-- The member 's' of `leases` is an alarm: due when the first tick is, or earlier. A claim that finds it due tells its
-- caller to publish the tick, and puts the alarm off by a second: if the caller dies, another one is told then.

-- Returns whether a consumer must be awake earlier than before. In a slot that is leaving its node, a key that was
-- emptied counts as moved: so an error means that there is no schedule.
local function set_tick_alarm()
  local found = redis.pcall('ZRANGE', schedules, 0, 0, 'WITHSCORES')
  local first = not found.err and tonumber(found[2])
  if not first or first == math.huge then
    redis.call('ZREM', leases, 's')
    return false
  end
  local before = redis.call('ZSCORE', leases, 's')
  redis.call('ZADD', leases, found[2], 's')
  return not before or first < tonumber(before)
end
