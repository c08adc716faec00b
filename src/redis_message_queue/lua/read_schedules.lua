-- read_schedules.lua: reads schedules, those with the next tick first.
-- KEYS  schedules
-- ARGV  records: what the keys of their records begin with
--       latest: the time up to which their next tick is, 'now' or '+inf'
--       skipped (number): how many to leave out | count (number): how many to read at most
-- Returns {now, name, next, record, name, next, record, ...}: the record as {definition, payload, timing, revision,
--       created, after, last}, in which anything can be nil; it is empty if its key has another type.
--@include clock
local BYTES = 1000000 -- after so many it ends: the caller asks again
local before = latest == 'now' and now or latest
local found = redis.call('ZRANGEBYSCORE', schedules, '-inf', before, 'WITHSCORES', 'LIMIT', skipped, count)
local result, bytes = {string.format('%.0f', now)}, 0
for place = 1, #found, 2 do
  if bytes >= BYTES then break end
  local record = redis.pcall('HMGET', records .. found[place],
    'definition', 'payload', 'timing', 'revision', 'created', 'after', 'last')
  if record.err then record = {} end
  for _, value in ipairs(record) do bytes = bytes + (value and #value or 0) end
  for _, part in ipairs({found[place], found[place + 1], record}) do result[#result + 1] = part end
end
return result
