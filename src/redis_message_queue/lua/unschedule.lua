-- unschedule.lua: removes a schedule.
-- KEYS  schedules | leases | journal | meta | reply | schedule: the record of this one
-- ARGV  keep_ms | call | name: of the schedule
-- Returns '1', or '0' if there was none. Messages that it has published stay.
--@include reply
if answer then return answer end
--@include state
--@include tick_alarm
--@include check_types
--@include remember
check_types('ZCARD', leases, schedules)
check_types('HLEN', schedule)
-- The record first: a schedule without one publishes nothing.
local records = redis.call('UNLINK', schedule)
local found = redis.call('ZREM', schedules, name) + records > 0
if found then set_tick_alarm() end
return remember(found and '1' or '0')
