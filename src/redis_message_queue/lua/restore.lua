-- restore.lua: stores messages of an export again, to wait in their lists or to be delayed: each once.
-- KEYS  pending | wakeup | deliveries | leases | tenant_ring | tenant_backlog | weights | delayed | delayed_messages
--       processing | tenant_in_flight | cancelled | journal | meta | reply
--       markers...: each remembers that a message was restored
-- ARGV  keep_ms | tenant_pending | window_ms: how long a marker lasts
--       mark_ms: how long the mark of a cancelled message is kept | holder: 15 bytes that name the caller's slot | call
--       messages...: for each its due, its entry in deliveries or '', what else is known of it, and the message as it
--       was stored. Known is 'c' if it is cancelled, and 'p' if it keeps the place of its tenant until it is due, as
--       retry_later.lua leaves it in a queue with `ordered_tenants`
-- Returns '1' or '0' for each: stored, or stored before.
--@include reply
if answer then return answer end
local limit, tenant_limit = 0, 0 -- an export is as large as it is
local stored_event, drops, longest, expired = 'published', false, nil, nil
--@include state
--@include clock
--@include enqueue
--@include delivery_state
--@include in_flight
--@include wake
--@include check_types
--@include remember
check_types('HLEN', processing)
check_types('ZCARD', tenant_in_flight, cancelled)
local restored, due_times, keeps_place = {}, {}, {}
for place = 1, #markers do
  due_times[place], restored[place] = messages[4 * place - 3], messages[4 * place]
  if string.find(messages[4 * place - 1], 'p', 1, true) then keeps_place[id_of(restored[place])] = true end
end
local marks, plan = plan_messages(restored, markers, due_times)

-- What keeps its place is in flight under a lease that ends when it is due, and is nobody's. The others are delayed.
local bodies, deadlines, flights, others_due, others = {}, {}, {}, {}, {}
local function add(list, first, second)
  list[#list + 1] = first
  list[#list + 1] = second
end
for at = 1, #plan.bodies, 2 do
  local due, id, stored = plan.due_times[at], plan.bodies[at], plan.bodies[at + 1]
  if keeps_place[id] and tenant_of(stored) ~= '' then
    add(bodies, id, stored)
    add(deadlines, due, id .. holder .. NOBODY)
    add(flights, 0, flight_of(tenant_of(stored), id))
  else
    add(others, id, stored)
    add(others_due, due, id)
  end
end
plan.bodies, plan.due_times = others, others_due
if #bodies > 0 then
  redis.call('HSET', processing, unpack(bodies)) -- a full server refuses it, before anything has changed
  redis.call('ZADD', leases, unpack(deadlines))
  redis.call('ZADD', tenant_in_flight, unpack(flights))
  redis.call('HSET', meta, 'counts', 1, 'tenants', 1)
end
local wakes = store_messages(plan, window_ms) or #bodies > 0
local entries, cancelled_ids = {}, {}
for place, stored in ipairs(restored) do
  local entry, known, is_new = messages[4 * place - 2], messages[4 * place - 1], marks[place] == '1'
  if is_new and entry ~= '' then add(entries, id_of(stored), entry) end
  if is_new and string.find(known, 'c', 1, true) then add(cancelled_ids, now, id_of(stored)) end
end
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
if #cancelled_ids > 0 then
  redis.call('ZADD', cancelled, unpack(cancelled_ids))
  redis.call('PEXPIRE', cancelled, mark_ms)
  if not cancels then redis.call('HSET', meta, 'cancels', '1') end
end
if wakes then wake() end
write_journal()
return remember(table.concat(marks))
