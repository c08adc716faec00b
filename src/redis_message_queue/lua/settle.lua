-- settle.lua: removes messages that the caller owns, and pushes their payloads to a list if it is given.
-- KEYS  processing | leases | deliveries | pending | wakeup | tenant_ring | tenant_in_flight | journal | meta | reply
--       kept: completed, failed or dlq (left out to keep nothing) | records: those of kept (left out with it)
-- ARGV  keep_ms | leased (flag) | tenant_pending | expired | limit (number): length of kept, 0 for any
--       note: a JSON object for the records, '' for an ack. Its `handled`, if a caller knows that, has two numbers for
--       each message: how many microseconds ago its handler started, and how many it ran | call | tokens
-- Returns '1' or '0' for each message: settled, or not the caller's and untouched; then what went wrong with trimming,
--       or 'cut N' if N older failed messages were cut off to stay within the limit.
--@include reply
if answer then return answer end
--@include state

-- The fast path: one message, delivered once, that leaves for good. (0x80 and 0x81: no entry, no extras.)
-- Both fast paths begin with a write that a full server accepts: see rule 2 of README.md.
if not kept and #tokens == 36 and not journaled then
  local field = leased and string.sub(tokens, 1, 16) or tokens
  local stored = redis.call('HGET', processing, field)
  local is_bare = stored and (string.byte(stored, 1) or 0) <= (counts and 0x80 or 0x81)
  if is_bare and (not leased or redis.call('ZREM', leases, tokens) == 1) then
    redis.call('HDEL', processing, field)
    redis.call('PSETEX', reply, keep_ms, call .. '1')
    return '1'
  end
end

--@include owned

-- The same for many at once: without entries, only the leases have to be read. Messages that were claimed together are
-- neighbours there, in their order, and leave together: each by itself would be looked for twice.
if not kept and leased and not journaled and not counts and redis.call('HLEN', deliveries) == 0 then
  redis.call('HLEN', processing)
  local first, owns_all = redis.call('ZRANK', leases, members[1]), true
  local last = first and first + #members - 1
  local are_neighbours = first and table.concat(redis.call('ZRANGE', leases, first, last)) == tokens
  if not are_neighbours then
    for _, deadline in ipairs(redis.call('ZMSCORE', leases, unpack(members))) do owns_all = owns_all and deadline end
  end
  if owns_all then
    if are_neighbours then
      redis.call('ZREMRANGEBYRANK', leases, first, last)
    else
      redis.call('ZREM', leases, unpack(members))
    end
    redis.call('HDEL', processing, unpack(ids))
    local marks = string.rep('1', #ids)
    redis.call('PSETEX', reply, keep_ms, call .. marks)
    return marks
  end
end

--@include clock
--@include delivery_state
--@include record
--@include in_flight
--@include check_types
--@include remember
local silent, leaving = not counts or redis.call('LLEN', wakeup) == 0, {}
if counts then redis.call('ZCARD', tenant_in_flight) end
if kept then check_types('LLEN', kept, records) end
local marks, owned, ended, known, payloads, notes = {}, {}, {}, {}, {}, {}
local reason = note == '' and {} or cjson.decode(note)
local event, error_type = reason.event or 'acked', reason.error_type
local handled = reason.handled or {}
reason.event, reason.handled = nil, nil
local bodies = redis.call('HMGET', processing, unpack(fields))
local deadlines, expired_by_tenant = find_leases(bodies)
for nth, stored in ipairs(bodies) do
  local id = ids[nth]
  if stored and deadlines[nth] then
    -- Bytes that somebody damaged meanwhile leave like the message that they were.
    local is_ours, tenant, payload, times = is_message(stored), '', stored, 1
    if is_ours then
      tenant, payload, times = tenant_of(stored), payload_of(stored), select(2, read_entry(id, stored, 1))
    end
    if counts then
      leaving[tenant] = leaving[tenant] or {}
      table.insert(leaving[tenant], id)
    end
    owned[#owned + 1] = fields[nth]
    ended[#ended + 1] = members[nth]
    marks[#marks + 1] = '1'
    local ago, ran = handled[2 * nth - 1], handled[2 * nth]
    if event == 'acked' then
      record_event(event, id, tenant, handler_times(ago, ran))
    else
      record_event(event, id, tenant, 'reason', reason.reason or '', 'error_type', error_type or '', 'count', times,
        handler_times(ago, ran))
    end
    if not is_ours or has_entry(stored) then known[#known + 1] = id end
    if kept then
      payloads[#payloads + 1] = payload
      notes[#notes + 1] = to_record(is_ours and stored, payload, times, reason)
    end
  else
    marks[#marks + 1] = '0'
  end
end
local result = table.concat(marks)

if #owned > 0 then
  -- First a write that a full server accepts, here too.
  if leased then redis.call('ZREM', leases, unpack(ended)) else redis.call('HDEL', processing, '') end
  if kept then
    local trim_error, cut = push_terminal(kept, records, payloads, notes, limit)
    if cut > 0 and event ~= 'acked' then trim_error = 'cut ' .. cut end
    result = result .. trim_error
  end
  redis.call('HDEL', processing, unpack(owned))
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  for tenant, expired_members in pairs(expired_by_tenant) do remove_expired(tenant, expired_members) end
  local wakes = false
  for tenant, left_ids in pairs(leaving) do wakes = leave_flight(tenant, left_ids) or wakes end
  if wakes and silent then redis.call('LPUSH', wakeup, '1') end
  write_journal()
  remember(result)
end
return result
