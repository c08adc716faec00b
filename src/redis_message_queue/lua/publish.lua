-- publish.lua: a message enters the line, once for each call.
-- KEYS  pending: the line | bell: a token if there is work | deliveries: id to lease number and count
--       reply: the caller's last answer | marker: remembers the deduplication key (left out without one)
-- ARGV  keep_ms: how long the answer is kept | call: the caller's number for this call
--       head: flags and id | body: what follows the time stamp
--       window_ms: how long the marker suppresses | limit: how many may wait (left out where there is no limit)
--       overload: what to do at the limit, 'refuse' or 'drop'
-- Returns 1 published, 0 suppressed as a duplicate, -1 refused because the line is full,
--         or 'd' and the ids of the messages that were dropped to make room.
local pending, bell, deliveries, reply, marker = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local keep_ms, call, head, limit, drops = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[6]), ARGV[7] == 'drop'
--@include reply
if answer then
  -- A write of this connection, so that a WAIT behind it waits for something. (Without memory PSETEX would fail here.)
  redis.call('PEXPIRE', reply, keep_ms)
  return tonumber(answer) or answer
end

-- What can refuse is asked before the first write: a key of a wrong type, or one that has moved, fails here.
local over = limit and redis.call('LLEN', pending) + 1 - limit or 0
if drops then redis.call('HLEN', deliveries) end
answer = 1
if marker and redis.call('GET', marker) then
  answer = 0
elseif over > 0 and not drops then
  answer = -1
else
  local time = redis.call('TIME')
  local stored = head .. struct.pack('>I8', time[1] * 1000000 + time[2]) .. ARGV[4]
  -- A line that was not empty has its token already, or somebody holds it and will pass it on.
  if redis.call('LPUSH', pending, stored) == 1 then
    local tokens = redis.pcall('LLEN', bell)
    if tokens == 0 then
      redis.call('LPUSH', bell, '1')
    elseif type(tokens) == 'table' then
      redis.call('LPOP', pending)
      return tokens
    end
  end
  if marker then redis.call('PSETEX', marker, ARGV[5], '') end -- empty, because there are millions of them
  if over > 0 then
    --@include envelope
    answer = 'd'
    -- A lowered limit may leave many: at most 1,000 go at once, so that no publish blocks the server.
    for _, dropped in ipairs(redis.call('RPOP', pending, math.min(over, 1000))) do
      if is_message(dropped) then answer = answer .. id_of(dropped) end
      if is_message(dropped) and has_entry(dropped) then redis.call('HDEL', deliveries, id_of(dropped)) end
    end
  end
end

redis.call('PSETEX', reply, keep_ms, call .. answer)
return answer
