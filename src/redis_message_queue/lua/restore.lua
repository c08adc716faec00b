-- restore.lua: stores messages of an export again, to wait in their lists or to be delayed: each once.
-- KEYS  pending | wakeup | deliveries | leases | tenant_ring | tenant_backlog | weights | delayed | delayed_messages
--       journal | meta | reply
--       markers...: each remembers that a message was restored
-- ARGV  keep_ms | tenant_pending | window_ms: how long a marker lasts | call
--       messages...: for each its due, its entry in deliveries or '', and the message as it was stored
-- Returns '1' or '0' for each: stored, or stored before.
--@include reply
if answer then return answer end
local limit, tenant_limit = 0, 0 -- an export is as large as it is
local stored_event, drops, longest, expired = 'published', false, nil, nil
--@include state
--@include clock
--@include journal
--@include envelope
--@include tenants
--@include places
--@include turns
--@include ring
--@include bounded
--@include delayed
--@include enqueue
local silent = redis.call('LLEN', wakeup) == 0
local restored, due_times, entries = {}, {}, {}
for place = 1, #markers do
  due_times[place], restored[place] = messages[3 * place - 2], messages[3 * place]
end
local marks, plan = plan_messages(restored, markers, due_times)
local wakes = store_messages(plan, window_ms)
for place, stored in ipairs(restored) do
  local entry = messages[3 * place - 1]
  if marks[place] == '1' and entry ~= '' then
    entries[#entries + 1] = id_of(stored)
    entries[#entries + 1] = entry
  end
end
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
local result = table.concat(marks)
if wakes and silent then redis.call('LPUSH', wakeup, '1') end
write_journal()
redis.call('PSETEX', reply, keep_ms, call .. result)
return result
