-- append.lua: adds messages of an export to a terminal list, each once.
-- KEYS  journal | meta | reply | dlq: where they go, a list of payloads | records: those of dlq
--       markers...: each remembers that a message was restored
-- ARGV  keep_ms | window_ms: how long a marker lasts | call
--       messages...: for each its payload, and its record or ''
-- Returns '1' or '0' for each: added, or added before.
--@include reply
if answer then return answer end
--@include state
--@include check_types
--@include remember
check_types('LLEN', dlq, records)
local marks, payloads, notes, fresh, seen = {}, {}, {}, {}, {}
for place, marker in ipairs(markers) do
  local payload, note = unpack(messages, 2 * place - 1, 2 * place)
  if seen[marker] or redis.call('GET', marker) then
    marks[place] = '0'
  else
    marks[place], seen[marker] = '1', true
    payloads[#payloads + 1] = payload
    fresh[#fresh + 1] = marker
    if note ~= '' then notes[#notes + 1] = note end
  end
end
if #payloads > 0 then
  redis.call('LPUSH', dlq, unpack(payloads))
  if #notes > 0 then redis.call('LPUSH', records, unpack(notes)) end
  for _, marker in ipairs(fresh) do redis.call('PSETEX', marker, window_ms, '1') end
end
return remember(table.concat(marks))
