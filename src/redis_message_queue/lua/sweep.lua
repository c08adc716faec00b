-- sweep.lua: removes up to 1,000 messages, or 4 MB of them, for good, for an operator, once for each call.
-- KEYS  pending | processing | leases | deliveries | tenant_ring | tenant_backlog | weights | tenant_in_flight
--       delayed | delayed_messages | journal | meta | reply | kept: completed, failed or dlq, for a list
--       records: those of kept
-- ARGV  keep_ms | tenant_pending | expired | call | event: 'purged' or 'deleted', for the journal
--       target: what is purged, for the journal
--       what: 'pending' for what waits of a tenant, expired messages included; 'delayed'; a 'list'; or 'orphans', which
--       are in flight without a consumer
--       whose: the tenant, '' for messages without one; for delayed messages the cursor of the last call, '' to
--       begin; the tokens of orphans, one after the other
--       began (number): when the operator asked, in microseconds of the server's clock: newer messages stay
--       others...: further tenants, at most 1,000 in all; for delayed messages ids that the last call with this cursor
--       did not come to, in one text
-- Returns how many, a space, and '' if everything is done. Otherwise the number of tenants that are done; for delayed
--       messages the next cursor, a space, and ids to look at before that.
--@include reply
if answer then return answer end
--@include state
--@include clock
--@include journal
--@include envelope
--@include ring
--@include in_flight
--@include slices
--@include check_types
--@include remember

check_queues()
check_types('HLEN', deliveries, processing, delayed_messages)
check_types('ZCARD', delayed)
if counts then check_types('ZCARD', tenant_in_flight) end
if what == 'list' then check_types('LLEN', kept, records) end
local queues = {}
if what == 'pending' then
  for place, tenant in ipairs({whose, unpack(others)}) do
    local waiting, expired_count = redis.call('LLEN', pending_of(tenant)), redis.call('ZCARD', expired .. tenant)
    queues[place] = {tenant = tenant, waiting = waiting, expired = expired_count}
  end
end
redis.call('HDEL', processing, '') -- a first write that a server without memory accepts
local count, more, steps, bytes = 0, '', 0, 0

-- Whether this script has no room for a message of this size, or for anything at all.
local function has_enough(size)
  return steps >= MAX_MESSAGES or bytes > 0 and bytes + (size or 0) > MAX_BYTES
end

-- Bytes that are not ours have no time: they count as old.
local function is_older(stored)
  return not is_message(stored) or time_of(stored) <= began
end

-- How many messages at the head of a list are older, as far as this script goes, and whether that is all. Adds ids with
-- an entry to `known`.
local function count_head(one, known)
  local read, found = reader_of(pending_of(one.tenant), one.waiting, 'right'), 0
  while found < one.waiting and not has_enough() do
    local stored = read(found)
    if not is_older(stored) then return found, true end
    if has_enough(#stored) then return found, false end
    if is_message(stored) and has_entry(stored) then known[#known + 1] = id_of(stored) end
    found, steps, bytes = found + 1, steps + 1, bytes + #stored
  end
  return found, found == one.waiting
end

if what == 'pending' then
  local known, in_flight, leaving, left_tenants = {}, {}, {}, 0
  for place, one in ipairs(queues) do
    if has_enough() then
      more = tostring(place - 1)
      break
    end
    -- Messages that expired later were in flight when the operator asked.
    local tokens, room = {}, math.max(MAX_MESSAGES - steps, 1)
    if one.expired > 0 then
      local last = string.format('%.0f', began)
      tokens = redis.call('ZRANGEBYSCORE', expired .. one.tenant, '-inf', last, 'LIMIT', 0, room)
    end
    local left_ids = {}
    for nth, token in ipairs(tokens) do
      local id = string.sub(token, 1, 16)
      in_flight[#in_flight + 1], known[#known + 1], left_ids[nth] = id, id, id
    end
    leave_flight(one.tenant, left_ids)
    steps = steps + #tokens
    local found, is_done = 0, one.waiting == 0
    if one.waiting > 0 then found, is_done = count_head(one, known) end
    if found > 0 then redis.call('LTRIM', pending_of(one.tenant), 0, -found - 1) end
    if #tokens > 0 then redis.call('ZREM', expired .. one.tenant, unpack(tokens)) end
    if one.tenant ~= '' then left_tenants = left_tenants + found end
    if found == one.waiting and #tokens == one.expired then leaving[#leaving + 1] = one.tenant end
    local removed = found + #tokens
    count = count + removed
    if removed > 0 then record_event(event, '', one.tenant, 'count', removed, 'target', target) end
    if not is_done or #tokens == room and one.expired > room then
      more = tostring(place - 1)
      break
    end
  end
  reduce_backlog(left_tenants)
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  if #in_flight > 0 then redis.call('HDEL', processing, unpack(in_flight)) end
  local in_ring = redis.call('ZCARD', tenant_ring)
  if #leaving > 0 and in_ring > 0 and redis.call('ZREM', tenant_ring, unpack(leaving)) == in_ring then
    redis.call('ZREM', leases, 'r')
  end
elseif what == 'delayed' then
  local waiting, ids, cursor, left_ids = redis.call('ZCARD', delayed), {}, whose, others[1] or ''
  for at = 1, #left_ids, 16 do ids[#ids + 1] = string.sub(left_ids, at, at + 15) end
  if #ids == 0 then
    local scanned = redis.call('ZSCAN', delayed, whose == '' and '0' or whose, 'COUNT', 500)
    cursor = scanned[1]
    for place = 1, #scanned[2], 2 do ids[#ids + 1] = scanned[2][place] end
  end
  local gone, left = {}, {}
  for _, id in ipairs(ids) do
    if #id == 16 and has_enough(redis.call('HSTRLEN', delayed_messages, id)) then
      left[#left + 1] = id
    else
      local stored = redis.call('HGET', delayed_messages, id)
      steps, bytes = steps + 1, bytes + (stored and #stored or 0)
      if not stored or is_older(stored) then gone[#gone + 1] = id end
    end
  end
  if #gone > 0 then
    count = redis.call('ZREM', delayed, unpack(gone)) -- a scan may show one of them twice
    redis.call('HDEL', delayed_messages, unpack(gone))
    redis.call('HDEL', deliveries, unpack(gone))
  end
  if cursor ~= '0' or #left > 0 then more = cursor .. ' ' .. table.concat(left) end
  if waiting == count then redis.call('ZREM', leases, 'd') end
elseif what == 'list' then
  count = redis.call('LLEN', kept)
  redis.call('UNLINK', kept, records)
else
  -- Orphans: a consumer without leases that died leaves its message in flight. If somebody settled the message
  -- meanwhile, its token is gone. In a slot that is leaving its node, an error means that none is left.
  local gone = {}
  for at = 1, math.min(#whose, 36 * MAX_MESSAGES), 36 do
    local token = string.sub(whose, at, at + 35)
    if redis.pcall('HDEL', processing, token) == 1 then gone[#gone + 1] = string.sub(token, 1, 16) end
  end
  count = #gone
  if count > 0 then redis.call('HDEL', deliveries, unpack(gone)) end
end
local result = count .. ' ' .. more -- string.format would end at the first NUL of an id
if count > 0 and what ~= 'pending' then record_event(event, '', '', 'count', count, 'target', target) end
write_journal()
return remember(result)
