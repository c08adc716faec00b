-- give_back.lua: messages return to the head of the line, in their order, if the caller holds them.
-- KEYS  pending: the line | processing: id to stored message | leases: id by deadline
--       deliveries: id to lease number and count | bell: a token if there is work | reply: the caller's last answer
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the queue has leases
--       forgiven: 1 if this delivery does not count against the limit
--       call: the caller's number for this call | then id, lease number, id, lease number, ... the oldest first
-- Returns '1' or '0' for each message: given back, or stale and untouched.
local pending, processing, leases, deliveries, bell, reply = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local keep_ms, leased, forgiven, call = ARGV[1], ARGV[2] == '1', ARGV[3] == '1', ARGV[4]
--@include reply
if answer then return answer end
--@include envelope
--@include ledger

if #ARGV > 2004 then error('at most 1,000 messages in one call', 0) end
local silent = redis.call('LLEN', bell) == 0
redis.call('LLEN', pending)
redis.call('HLEN', deliveries)
local marks, held, bodies, entries = {}, {}, {}, {}
for place = 5, #ARGV, 2 do
  local id = ARGV[place]
  local stored = redis.call('HGET', processing, id)
  local lease, times
  if stored then lease, times = read_entry(deliveries, id, stored, 1) end
  if stored and lease == tonumber(ARGV[place + 1]) then
    held[#held + 1] = id
    marks[#marks + 1] = '1'
    table.insert(bodies, 1, with_entry(stored))
    entries[#entries + 1] = id
    -- The lease number stays, so that the next holder gets a higher one and this one is fenced off.
    entries[#entries + 1] = write_entry(lease, forgiven and times - 1 or times)
  else
    marks[#marks + 1] = '0'
  end
end
answer = table.concat(marks)

if #held > 0 then
  -- The first write is one that a server without memory accepts.
  if leased then redis.call('ZREM', leases, unpack(held)) else redis.call('HDEL', processing, '') end
  redis.call('HSET', deliveries, unpack(entries))
  redis.call('RPUSH', pending, unpack(bodies))
  redis.call('HDEL', processing, unpack(held))
  if silent then redis.call('LPUSH', bell, '1') end
  redis.call('PSETEX', reply, keep_ms, call .. answer)
end
return answer
