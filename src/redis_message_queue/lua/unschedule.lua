-- unschedule.lua: removes a schedule.
-- KEYS  schedules | leases | journal | meta | reply | schedule: the record of this one
-- ARGV  keep_ms | call | name: of the schedule
-- Returns '1', or '0' if there was none. Messages that it has published stay.
--@include reply
if answer then return answer end
--@include state
redis.call('ZCARD', leases)
redis.call('ZCARD', schedules)
redis.call('HLEN', schedule)
--@include tick_alarm
-- The record first: a schedule without one publishes nothing.
local records = redis.call('UNLINK', schedule)
local found = redis.call('ZREM', schedules, name) + records > 0
if found then set_tick_alarm() end
local result = found and '1' or '0'
redis.call('PSETEX', reply, keep_ms, call .. result)
return result
