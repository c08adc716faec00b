-- settle.lua: messages leave the queue, into a list that keeps their payload or for good, if the caller holds them.
-- KEYS  processing: id to stored message | leases: id by deadline | deliveries: id to lease number and count
--       reply: the caller's last answer | kept: completed, failed or dlq (left out where nothing is kept)
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the queue has leases | limit: length of kept, 0 for any
--       call: the caller's number for this call | then id, lease number, id, lease number, ...
-- Returns '1' or '0' for each message: settled, or stale and untouched; then what went wrong with trimming.
--@include reply
--@include envelope
--@include ledger
local processing, leases, deliveries, reply, kept = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local keep_ms, leased, limit, call = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])

local answer = remembered(reply, call)
if answer then return answer end

if kept then redis.call('LLEN', kept) end
local marks, held, known, payloads = {}, {}, {}, {}
for place = 5, #ARGV, 2 do
  local id = ARGV[place]
  local entry = redis.call('HGET', deliveries, id)
  local mine = read_entry(entry, 1) == tonumber(ARGV[place + 1])
  local stored = mine and redis.call('HGET', processing, id)
  marks[#marks + 1] = stored and '1' or '0'
  if stored then
    held[#held + 1] = id
    if entry then known[#known + 1] = id end
    if kept then payloads[#payloads + 1] = payload_of(stored) end
  end
end
answer = table.concat(marks)

if #held > 0 then
  -- The first write is one that a server without memory accepts: a full queue can always be emptied.
  if leased then redis.call('ZREM', leases, unpack(held)) else redis.call('HDEL', deliveries, '') end
  if kept then redis.call('LPUSH', kept, unpack(payloads)) end
  redis.call('HDEL', processing, unpack(held))
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  if kept and limit > 0 then
    local trimmed = redis.pcall('LTRIM', kept, 0, limit - 1)
    if trimmed.err then answer = answer .. trimmed.err end
  end
  remember(reply, call, answer, keep_ms)
end
return answer
