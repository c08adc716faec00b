-- sweep.lua: up to 1,000 messages, or 4 MB of them, are removed for good, by an operator, once for each call.
-- KEYS  pending: the line of messages without a tenant | processing: id to stored message
--       leases: id and nonce by deadline | deliveries: id to attempts and counts
--       tenants: those with work, by virtual time
--       size: how many wait in the lines of tenants | weights: tenant to weight | delayed: id by due time
--       later: id to stored message | journal: what has happened
--       meta: version of what is stored, rules of the journal
--       reply: the caller's last answer | kept: completed, failed or dlq, for a list
--       records: what is remembered beside the payloads there
-- ARGV  keep_ms: how long the answer is kept | line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with | call: the caller's number for this call
--       event: 'purged' or 'deleted', for the journal | target: what is purged, for the journal
--       what: 'line' of a tenant with what came back to it, 'delayed', a 'list', or 'orphans', which are in flight and
--       nobody works on them
--       whose: tenant of that line, '' for those without one; for delayed messages where the last call has stopped
--       looking, '' to begin; the tokens of orphans, one behind the other
--       began: when the operator asked for it, in microseconds of the server's clock: what was published later stays
--       then for a line further tenants, at most 1,000 in all; for delayed messages ids that the last call with this
--       cursor did not come to, in one text
-- Returns how many, a space, and '' if there is no more to do. Otherwise for lines the number of tenants that are done,
--       for delayed messages where to go on looking, a space, and ids to look at before that.
local pending, processing, leases, deliveries, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local size, weights, delayed, later = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local journal, meta, reply, kept, records = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local keep_ms, line, returned, call = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local event, target, what, whose, began = ARGV[5], ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
--@include reply
if answer then return answer end
--@include journal
--@include envelope
--@include lines
--@include slices
local STEPS, BYTES = 1000, 4194304 -- how many messages one script goes through, and what they weigh together

check_lines()
redis.call('HLEN', deliveries)
redis.call('HLEN', processing)
redis.call('ZCARD', delayed)
redis.call('HLEN', later)
if what == 'list' then
  redis.call('LLEN', kept)
  redis.call('LLEN', records)
end
local lines = {}
if what == 'line' then
  for place, tenant in ipairs({whose, unpack(ARGV, 10)}) do
    local waiting, came_back = redis.call('LLEN', line_of(tenant)), redis.call('ZCARD', returned .. tenant)
    lines[place] = {tenant = tenant, waiting = waiting, came_back = came_back}
  end
end
redis.call('HDEL', processing, '') -- a first write that a server without memory accepts
local count, more, steps, bytes = 0, '', 0, 0

-- Whether this script has no room for a message of this weight, or for anything at all.
local function has_enough(weight)
  return steps >= STEPS or bytes > 0 and bytes + (weight or 0) > BYTES
end

-- Bytes that are not ours have no time: they were there.
local function was_there(stored)
  return not is_message(stored) or time_of(stored) <= began
end

-- How many at the head of a line were there when it began, as far as this script goes; and ids with an entry.
local function count_head(one, known)
  local read, found = reader_of(line_of(one.tenant), one.waiting, 'right'), 0
  while found < one.waiting and not has_enough() do
    local stored = read(found)
    if not was_there(stored) then return found, true end
    if has_enough(#stored) then return found, false end
    if is_message(stored) and has_entry(stored) then known[#known + 1] = id_of(stored) end
    found, steps, bytes = found + 1, steps + 1, bytes + #stored
  end
  return found, found == one.waiting
end

if what == 'line' then
  local known, back, leaving, left_lines = {}, {}, {}, 0
  for place, one in ipairs(lines) do
    if has_enough() then
      more = tostring(place - 1)
      break
    end
    -- What came back after it began was in flight then.
    local ids, room = {}, math.max(STEPS - steps, 1)
    if one.came_back > 0 then
      local last = string.format('%.0f', began)
      ids = redis.call('ZRANGEBYSCORE', returned .. one.tenant, '-inf', last, 'LIMIT', 0, room)
    end
    for _, token in ipairs(ids) do
      local id = string.sub(token, 1, 16)
      back[#back + 1], known[#known + 1] = id, id
    end
    steps = steps + #ids
    local found, is_done = 0, one.waiting == 0
    if one.waiting > 0 then found, is_done = count_head(one, known) end
    if found > 0 then redis.call('LTRIM', line_of(one.tenant), 0, -found - 1) end
    if #ids > 0 then redis.call('ZREM', returned .. one.tenant, unpack(ids)) end
    if one.tenant ~= '' then left_lines = left_lines + found end
    if found == one.waiting and #ids == one.came_back then leaving[#leaving + 1] = one.tenant end
    count = count + found + #ids
    if found + #ids > 0 then tell(event, '', one.tenant, 'count', found + #ids, 'target', target) end
    if not is_done or #ids == room and one.came_back > room then
      more = tostring(place - 1)
      break
    end
  end
  shrink(left_lines)
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  if #back > 0 then redis.call('HDEL', processing, unpack(back)) end
  local in_turns = redis.call('ZCARD', tenants)
  if #leaving > 0 and in_turns > 0 and redis.call('ZREM', tenants, unpack(leaving)) == in_turns then
    redis.call('ZREM', leases, 'r')
  end
elseif what == 'delayed' then
  local waiting, ids, cursor = redis.call('ZCARD', delayed), {}, whose
  for at = 1, #(ARGV[10] or ''), 16 do ids[#ids + 1] = string.sub(ARGV[10], at, at + 15) end
  if #ids == 0 then
    local scanned = redis.call('ZSCAN', delayed, whose == '' and '0' or whose, 'COUNT', 500)
    cursor = scanned[1]
    for place = 1, #scanned[2], 2 do ids[#ids + 1] = scanned[2][place] end
  end
  local gone, left = {}, {}
  for _, id in ipairs(ids) do
    if #id == 16 and has_enough(redis.call('HSTRLEN', later, id)) then
      left[#left + 1] = id
    else
      local stored = redis.call('HGET', later, id)
      steps, bytes = steps + 1, bytes + (stored and #stored or 0)
      if not stored or was_there(stored) then gone[#gone + 1] = id end
    end
  end
  if #gone > 0 then
    count = redis.call('ZREM', delayed, unpack(gone)) -- a scan may show one of them twice
    redis.call('HDEL', later, unpack(gone))
    redis.call('HDEL', deliveries, unpack(gone))
  end
  if cursor ~= '0' or #left > 0 then more = cursor .. ' ' .. table.concat(left) end
  if waiting == count then redis.call('ZREM', leases, 'd') end
elseif what == 'list' then
  count = redis.call('LLEN', kept)
  redis.call('UNLINK', kept, records)
else
  -- Orphans: a consumer without leases that died leaves its message in flight. A token that somebody has settled
  -- meanwhile is none any more.
  local gone = {}
  for at = 1, math.min(#whose, 36 * STEPS), 36 do
    local token = string.sub(whose, at, at + 35)
    if redis.call('HDEL', processing, token) == 1 then gone[#gone + 1] = string.sub(token, 1, 16) end
  end
  count = #gone
  if count > 0 then redis.call('HDEL', deliveries, unpack(gone)) end
end
answer = count .. ' ' .. more -- string.format would end at the first NUL of an id
if count > 0 and what ~= 'line' then tell(event, '', '', 'count', count, 'target', target) end
local time = redis.call('TIME')
write_journal(time[1] * 1000000 + time[2])
redis.call('PSETEX', reply, keep_ms, call .. answer)
return answer
