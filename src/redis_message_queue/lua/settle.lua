-- settle.lua: messages leave the queue, into a list that keeps their payload or for good, if the caller holds them.
-- KEYS  processing: id to stored message | leases: id by deadline | deliveries: id to lease number and count
--       pending: the line of messages without a tenant | tenants: those with work, by virtual time
--       journal: what has happened | journal_state: its rules and marks | reply: the caller's last answer
--       kept: completed, failed or dlq (left out where nothing is kept)
--       records: what is remembered beside the payloads there (left out with kept)
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the queue has leases
--       line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       limit: length of kept, 0 for any | note: a JSON object for the records, '' for an acknowledgement
--       call: the caller's number for this call | whom: the ids, one behind the other
--       numbers: their lease numbers with spaces between, '' if all of them are 1
-- Returns '1' or '0' for each message: settled, or stale and untouched; then what went wrong with trimming, or
--       'cut N' if N older messages that had failed were cut off to stay within the limit.
local processing, leases, deliveries, pending, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local journal, journal_state, reply, kept, records = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local keep_ms, leased, line, returned = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4]
local call, whom, numbers = ARGV[7], ARGV[8], ARGV[9]
--@include reply
if answer then return answer end
--@include journal

-- The usual case in a straight line: one message, delivered once, that leaves for good.
-- (0x80 and 0x81: no entry, no extras.) The first write is one that a server without memory accepts.
if not kept and numbers == '' and #whom == 16 and not journaled then
  local stored = redis.call('HGET', processing, whom)
  if stored and string.byte(stored, 1) <= 0x81 and (not leased or redis.call('ZREM', leases, whom) == 1) then
    redis.call('HDEL', processing, whom)
    redis.call('PSETEX', reply, keep_ms, call .. '1')
    return '1'
  end
end

--@include held
local deadlines = leased and redis.call('ZMSCORE', leases, unpack(ids))

-- The same for many at once: where there are no entries, a lease says that its message was delivered once.
if not kept and leased and numbers == '' and not journaled and redis.call('HLEN', deliveries) == 0 then
  redis.call('HLEN', processing)
  local held = true
  for _, deadline in ipairs(deadlines) do held = held and deadline end
  if held then
    redis.call('ZREM', leases, unpack(ids))
    redis.call('HDEL', processing, unpack(ids))
    answer = string.rep('1', #ids)
    redis.call('PSETEX', reply, keep_ms, call .. answer)
    return answer
  end
end

--@include envelope
--@include ledger
--@include lines
--@include record

if kept then
  redis.call('LLEN', kept)
  redis.call('LLEN', records)
end
local marks, held, known, payloads, notes, came_back = {}, {}, {}, {}, {}, {}
local note = ARGV[6] == '' and {} or cjson.decode(ARGV[6])
local event, error_type = note.event or 'acked', note.error_type
note.event = nil
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for nth, stored in ipairs(redis.call('HMGET', processing, unpack(ids))) do
  local id, lease, times = ids[nth]
  if stored then lease, times = read_entry(deliveries, id, stored, 1) end
  if stored and lease == lease_number(nth) then
    held[#held + 1] = id
    marks[#marks + 1] = '1'
    if event == 'acked' then
      tell(event, id, tenant_of(stored))
    else
      tell(event, id, tenant_of(stored), 'reason', note.reason or '', 'error_type', error_type or '', 'count', times)
    end
    if leased and not deadlines[nth] then
      -- A lease that had run out may lie among its tenant's returned messages.
      local tenant = tenant_of(stored)
      redis.call('ZCARD', tenants)
      check_line(tenant)
      if redis.call('ZSCORE', returned .. tenant, id) then
        came_back[tenant] = came_back[tenant] or {}
        table.insert(came_back[tenant], id)
      end
    end
    if has_entry(stored) then known[#known + 1] = id end
    if kept then
      payloads[#payloads + 1] = payload_of(stored)
      notes[#notes + 1] = record(stored, payloads[#payloads], times, now, note)
    end
  else
    marks[#marks + 1] = '0'
  end
end
answer = table.concat(marks)

if #held > 0 then
  -- The first write is one that a server without memory accepts: a full queue can always be emptied.
  if leased then redis.call('ZREM', leases, unpack(held)) else redis.call('HDEL', processing, '') end
  if kept then
    local trouble, cut = keep(kept, records, payloads, notes, tonumber(ARGV[5]))
    if cut > 0 and event ~= 'acked' then trouble = 'cut ' .. cut end
    answer = answer .. trouble
  end
  redis.call('HDEL', processing, unpack(held))
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  for tenant, ids_of_it in pairs(came_back) do leave_returned(tenant, ids_of_it) end
  write_journal(now)
  redis.call('PSETEX', reply, keep_ms, call .. answer)
end
return answer
