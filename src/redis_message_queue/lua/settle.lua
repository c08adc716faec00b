-- settle.lua: messages leave the queue, into a list that keeps their payload or for good, if the caller holds them.
-- KEYS  processing: id to stored message | leases: id and nonce by deadline | deliveries: id to attempts and counts
--       pending: the line of messages without a tenant | tenants: those with work, by virtual time
--       journal: what has happened | meta: version of what is stored, rules of the journal
--       reply: the caller's last answer
--       kept: completed, failed or dlq (left out where nothing is kept)
--       records: what is remembered beside the payloads there (left out with kept)
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the caller has leases
--       line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       limit: length of kept, 0 for any | note: a JSON object for the records, '' for an acknowledgement
--       call: the caller's number for this call | tokens: the leases, one behind the other
-- Returns '1' or '0' for each message: settled, or stale and untouched; then what went wrong with trimming, or
--       'cut N' if N older messages that had failed were cut off to stay within the limit.
local processing, leases, deliveries, pending, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local journal, meta, reply, kept, records = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local keep_ms, leased, line, returned = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4]
local call, tokens = ARGV[7], ARGV[8]
local size, weights -- nobody enters a line here
--@include reply
if answer then return answer end
--@include journal

-- The usual case in a straight line: one message, delivered once, that leaves for good.
-- (0x80 and 0x81: no entry, no extras.) The first write is one that a server without memory accepts.
if not kept and #tokens == 36 and not journaled then
  local field = leased and string.sub(tokens, 1, 16) or tokens
  local stored = redis.call('HGET', processing, field)
  local is_plain = stored and (string.byte(stored, 1) or 0) <= 0x81
  if is_plain and (not leased or redis.call('ZREM', leases, tokens) == 1) then
    redis.call('HDEL', processing, field)
    redis.call('PSETEX', reply, keep_ms, call .. '1')
    return '1'
  end
end

--@include envelope
--@include lines
--@include held

-- The same for many at once: where there are no entries, nothing but the leases has to be looked at.
if not kept and leased and not journaled and redis.call('HLEN', deliveries) == 0 then
  redis.call('HLEN', processing)
  local held = true
  for _, deadline in ipairs(redis.call('ZMSCORE', leases, unpack(members))) do held = held and deadline end
  if held then
    redis.call('ZREM', leases, unpack(members))
    redis.call('HDEL', processing, unpack(ids))
    answer = string.rep('1', #ids)
    redis.call('PSETEX', reply, keep_ms, call .. answer)
    return answer
  end
end

--@include ledger
--@include record

if kept then
  redis.call('LLEN', kept)
  redis.call('LLEN', records)
end
local marks, held, ended, known, payloads, notes = {}, {}, {}, {}, {}, {}
local note = ARGV[6] == '' and {} or cjson.decode(ARGV[6])
local event, error_type = note.event or 'acked', note.error_type
note.event = nil
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local bodies = redis.call('HMGET', processing, unpack(fields))
local deadlines = find_leases(bodies)
for nth, stored in ipairs(bodies) do
  local id = ids[nth]
  if stored and deadlines[nth] then
    -- Bytes that somebody has damaged meanwhile leave like the message that they were.
    local is_ours, tenant, payload, times = is_message(stored), '', stored, 1
    if is_ours then
      tenant, payload, times = tenant_of(stored), payload_of(stored), select(2, read_entry(deliveries, id, stored, 1))
    end
    held[#held + 1] = fields[nth]
    ended[#ended + 1] = members[nth]
    marks[#marks + 1] = '1'
    if event == 'acked' then
      tell(event, id, tenant)
    else
      tell(event, id, tenant, 'reason', note.reason or '', 'error_type', error_type or '', 'count', times)
    end
    if not is_ours or has_entry(stored) then known[#known + 1] = id end
    if kept then
      payloads[#payloads + 1] = payload
      notes[#notes + 1] = record(is_ours and stored, payload, times, now, note)
    end
  else
    marks[#marks + 1] = '0'
  end
end
answer = table.concat(marks)

if #held > 0 then
  -- The first write is one that a server without memory accepts: a full queue can always be emptied.
  if leased then redis.call('ZREM', leases, unpack(ended)) else redis.call('HDEL', processing, '') end
  if kept then
    local trouble, cut = keep(kept, records, payloads, notes, tonumber(ARGV[5]))
    if cut > 0 and event ~= 'acked' then trouble = 'cut ' .. cut end
    answer = answer .. trouble
  end
  redis.call('HDEL', processing, unpack(held))
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  for tenant, theirs in pairs(came_back) do leave_returned(tenant, theirs) end
  write_journal(now)
  redis.call('PSETEX', reply, keep_ms, call .. answer)
end
return answer
