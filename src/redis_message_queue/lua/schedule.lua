-- schedule.lua: defines a schedule, or changes it.
-- KEYS  schedules | leases | wakeup | journal | meta | reply | schedule: the record of this one
-- ARGV  keep_ms | call | name: of the schedule | most (number): how many schedules a queue may have
--       definition: everything but the message, as JSON | payload: of the message | timing: when its ticks are, as JSON
--       revision: what names this version of it | created: now, by the server's clock
--       next: when its first tick is due in microseconds, 'inf' for never
-- Returns 'new', 'changed' or 'same'; or '-' if the queue has too many schedules. If only the message changes, the
--       ticks go on as they were.
--@include reply
if answer then return answer end
--@include state
--@include clock
local old_definition, old_payload, old_timing
  = unpack(redis.call('HMGET', schedule, 'definition', 'payload', 'timing'))
local old_next = redis.call('ZSCORE', schedules, name)
redis.call('ZCARD', leases)
--@include wake
local result = old_next and 'changed' or 'new'
if old_next and old_definition == definition and old_payload == payload then
  result = 'same'
elseif not old_next and redis.call('ZCARD', schedules) >= most then
  result = '-'
end
--@include tick_alarm
--@include remember
if result == 'new' or result == 'changed' then
  redis.call('HSET', schedule, 'definition', definition, 'payload', payload, 'timing', timing, 'revision', revision)
  if result == 'new' then redis.call('HSET', schedule, 'created', created, 'last', '') end
  if result == 'new' or old_timing ~= timing then
    -- It begins now: if the call took long, another definition may have published the ticks since `created`.
    redis.call('HSET', schedule, 'after', string.format('%.0f', now))
    redis.call('ZADD', schedules, next, name)
  end
  if set_tick_alarm() then wake() end
end
return remember(result)
