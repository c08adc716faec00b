-- settle.lua: messages leave the queue, into a list that keeps their payload or for good, if the caller holds them.
-- KEYS  processing: id to stored message | leases: id by deadline | deliveries: id to lease number and count
--       reply: the caller's last answer | kept: completed, failed or dlq (left out where nothing is kept)
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the queue has leases | limit: length of kept, 0 for any
--       call: the caller's number for this call | then id, lease number, id, lease number, ...
-- Returns '1' or '0' for each message: settled, or stale and untouched; then what went wrong with trimming.
local processing, leases, deliveries, reply, kept = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local keep_ms, leased, call = ARGV[1], ARGV[2] == '1', ARGV[4]
--@include reply
if answer then return answer end

-- The usual case in a straight line: one message, delivered once, that leaves for good.
-- (0x80: no tenant, no entry.) The first write is one that a server without memory accepts.
if not kept and ARGV[6] == '1' and #ARGV == 6 then
  local stored = redis.call('HGET', processing, ARGV[5])
  if stored and string.byte(stored, 1) == 0x80 then
    if leased then redis.call('ZREM', leases, ARGV[5]) end
    redis.call('HDEL', processing, ARGV[5])
    redis.call('PSETEX', reply, keep_ms, call .. '1')
    return '1'
  end
end

--@include envelope
--@include ledger

if #ARGV > 2004 then error('at most 1,000 messages in one call', 0) end
if kept then redis.call('LLEN', kept) end
local marks, held, known, payloads = {}, {}, {}, {}
for place = 5, #ARGV, 2 do
  local id = ARGV[place]
  local stored = redis.call('HGET', processing, id)
  if stored and read_entry(deliveries, id, stored, 1) == tonumber(ARGV[place + 1]) then
    held[#held + 1] = id
    marks[#marks + 1] = '1'
    if has_entry(stored) then known[#known + 1] = id end
    if kept then payloads[#payloads + 1] = payload_of(stored) end
  else
    marks[#marks + 1] = '0'
  end
end
answer = table.concat(marks)

if #held > 0 then
  -- The first write is one that a server without memory accepts: a full queue can always be emptied.
  if leased then redis.call('ZREM', leases, unpack(held)) else redis.call('HDEL', processing, '') end
  if kept then redis.call('LPUSH', kept, unpack(payloads)) end
  redis.call('HDEL', processing, unpack(held))
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  local limit = kept and tonumber(ARGV[3]) or 0
  if limit > 0 then
    local trimmed = redis.pcall('LTRIM', kept, 0, limit - 1)
    if trimmed.err then answer = answer .. trimmed.err end
  end
  redis.call('PSETEX', reply, keep_ms, call .. answer)
end
return answer
