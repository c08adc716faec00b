-- hand_off.lua: removes a message that the caller owns and stores its results in other queues, all of it or nothing.
-- KEYS  processing | leases | deliveries | pending | wakeup | tenant_ring | tenant_in_flight | journal | meta | reply
--       kept: completed | records: those of kept
--       targets...: for each target its pending, wakeup, deliveries, leases, tenant_ring, tenant_backlog, weights,
--       delayed, delayed_messages, journal, meta and longest; at the end the markers of all messages
-- ARGV  keep_ms | leased (flag) | tenant_pending | expired
--       kept_limit (number): length of kept, 0 for any, -1 to keep nothing | note: as in settle.lua
--       call | tokens: of one message
--       results...: for each target tenant_pending, expired, window_ms, limit, tenant_limit, overload, base, its
--       version_field, the number of messages, and for each message its due, marker and body, as in enqueue.lua
-- Returns '0' if the message is not the caller's; '-' and the number of a target that is full; or '1', for each result
--       '1' or '0' (stored, or a duplicate there), then for each target in two bytes how many messages it dropped and
--       their ids, then what went wrong with trimming. In the first two cases nothing was changed.
--@include reply
if answer then
  redis.call('PEXPIRE', reply, keep_ms)
  return answer
end
--@include clock
--@include envelope
local KEYS_OF_TARGET, RULES_OF_TARGET = 12, 9

-- The steps of a queue, for a target: its keys and rules have the names that these steps need.
local function open_target(
  version_field, tenant_pending, expired, limit, tenant_limit, drops,
  pending, wakeup, deliveries, leases, tenant_ring, tenant_backlog, weights, delayed, delayed_messages, journal, meta,
  longest
)
  local stored_event = 'published'
  --@include state
  --@include enqueue
  --@include wake
  local function store(plan, window_ms)
    local wakes, dropped = store_messages(plan, window_ms)
    write_journal()
    if wakes then wake() end
    return dropped
  end
  return {read = read_messages, plan = plan_messages, store = store}
end

--@include state
--@include delivery_state
--@include record
--@include in_flight
--@include owned
--@include check_types
--@include remember

-- First read: the message itself, then each target.
local id, bodies = ids[1], redis.call('HMGET', processing, fields[1])
local stored = bodies[1]
if not stored or not is_message(stored) then return '0' end
local owned, expired_by_tenant = find_leases(bodies)
if not owned[1] then return '0' end
local _, times = read_entry(id, stored, 1)
local keeps, tenant = kept_limit >= 0, tenant_of(stored)
if keeps then check_types('LLEN', kept, records) end
check_types('ZCARD', leases, tenant_ring)
if counts then redis.call('LLEN', wakeup) redis.call('ZCARD', tenant_in_flight) end
check_tenant(tenant)

local queues, at, messages = {}, 1, 0
while at <= #results do
  local one = {at = at + RULES_OF_TARGET, count = tonumber(results[at + 8])}
  one.rules = {unpack(results, at, at + RULES_OF_TARGET - 1)}
  queues[#queues + 1] = one
  at, messages = one.at + 3 * one.count, messages + one.count
end
if messages > MAX_MESSAGES then error(TOO_MANY, 0) end
local markers = {unpack(targets, KEYS_OF_TARGET * #queues + 1)}
local marks = {}
for nth, one in ipairs(queues) do
  local prefix, prefix_expired, window_ms, limit, tenant_limit, overload, base, field = unpack(one.rules)
  local target = open_target(
    field, prefix, prefix_expired, tonumber(limit), tonumber(tenant_limit), overload == 'drop',
    unpack(targets, KEYS_OF_TARGET * (nth - 1) + 1, KEYS_OF_TARGET * nth)
  )
  local target_marks, plan = target.plan(target.read(results, one.at, one.count, base, markers))
  -- Kept, so that a late repetition cannot store the results after the caller was refused and has gone on.
  if not plan then return remember('-' .. nth) end
  one.store = function() return target.store(plan, window_ms) end
  for _, mark in ipairs(target_marks) do marks[#marks + 1] = mark end
end

-- Now write: first the results, then remove what they were made of.
local all_dropped, trim_error, reason = '', '', cjson.decode(note)
local handled = reason.handled
reason.handled = nil
for _, one in ipairs(queues) do
  local dropped = one.store()
  all_dropped = all_dropped .. struct.pack('>I2', #dropped / 16) .. dropped
end
if keeps then
  local payload = payload_of(stored)
  local record = to_record(stored, payload, times, reason)
  trim_error = push_terminal(kept, records, {payload}, {record}, kept_limit)
end
redis.call('HDEL', processing, fields[1])
if has_entry(stored) then redis.call('HDEL', deliveries, id) end
if leased then redis.call('ZREM', leases, tokens) end
if expired_by_tenant[tenant] then remove_expired(tenant, expired_by_tenant[tenant]) end
-- Not as before the results were stored: the queue may be one of the targets.
if leave_flight(tenant, {id}) and redis.call('LLEN', wakeup) == 0 then redis.call('LPUSH', wakeup, '1') end
record_event('handed_off', id, tenant, 'results', messages, handler_times(unpack(handled or {})))
write_journal()
return remember('1' .. table.concat(marks) .. all_dropped .. trim_error)
