-- tick.lua: publishes the ticks of a schedule that are due, and advances it: each tick once, whoever calls how often.
-- KEYS  pending | wakeup | deliveries | leases | tenant_ring | tenant_backlog | weights | delayed | delayed_messages
--       journal | meta | schedules | reply | longest: for a queue that drops messages
--       schedule: the record of this one
-- ARGV  keep_ms | tenant_pending | expired | limit (number) | tenant_limit (number) | overload: as in enqueue.lua
--       call | base: what the ids begin with; the place in the chunk follows | name: of the schedule
--       revision: of the schedule, as the caller has read it | after: the tick up to which it was done then
--       done (number): the tick up to which it is done now
--       last: the last of these ticks that has a message, '' if none has
--       next: when the next tick is due in microseconds, 'inf' for never
--       messages...: for each message three arguments, as in the full form of enqueue.lua
-- Returns '1' and the ids of messages that were dropped to make room; '0' if the schedule was changed, removed or
--       advanced by another caller, or has no such tick yet; or '-' if there is no room. Then nothing has changed.
--@include reply
if answer then return answer end
--@include state
--@include clock
local count = #messages / 3
if count > MAX_MESSAGES then error(TOO_MANY, 0) end
--@include wake
local drops, stored_event = overload == 'drop', 'published'
--@include enqueue
--@include tick_alarm
--@include remember
local known = redis.call('HMGET', schedule, 'revision', 'after')
local is_known = redis.call('ZSCORE', schedules, name) and known[1] == revision and known[2] == after
local result = '0'
if is_known and done <= now then
  local _, plan = plan_messages(read_messages(messages, 1, count, base, {}))
  result = '-'
  if plan then
    local wakes, dropped = store_messages(plan, 0)
    redis.call('HSET', schedule, 'after', string.format('%.0f', done))
    if last ~= '' then redis.call('HSET', schedule, 'last', last) end
    redis.call('ZADD', schedules, next, name)
    if set_tick_alarm() or wakes then wake() end
    write_journal()
    result = '1' .. dropped
  end
end
return remember(result)
