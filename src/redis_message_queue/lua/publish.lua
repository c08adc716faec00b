-- publish.lua: a message enters the line, once for each call.
-- KEYS  pending: the line | bell: a token if there is work | reply: the caller's last answer
--       marker: remembers the deduplication key (left out without one)
-- ARGV  keep_ms: how long the answer is kept | limit: how many may wait, 0 for any number
--       overload: what to do at the limit, 'refuse' or 'drop' | window_ms: how long the marker suppresses
--       call: the caller's number for this call | head: flags and id | body: what follows the time stamp
-- Returns 1 published, 0 suppressed as a duplicate, -1 refused because the line is full,
--         or 'd' and the ids of the messages that were dropped to make room.
--@include reply
--@include clock
--@include envelope
local pending, bell, reply, marker = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local keep_ms, limit, overload, window_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local call, head, body = tonumber(ARGV[5]), ARGV[6], ARGV[7]

local answer = remembered(reply, call)
if answer then return tonumber(answer) or answer end

-- Every key is read before the first write: one of a wrong type, or one that has moved, fails here.
local silent = redis.call('LLEN', bell) == 0
local waiting = redis.call('LLEN', pending)
local duplicate = marker and redis.call('GET', marker)

local over = limit > 0 and waiting + 1 - limit or 0
if duplicate then
  answer = '0'
elseif over > 0 and overload == 'refuse' then
  answer = '-1'
else
  redis.call('LPUSH', pending, head .. struct.pack('>I8', now_us()) .. body)
  if marker then redis.call('SET', marker, string.sub(head, 2), 'PX', window_ms) end
  answer = '1'
  if over > 0 then
    answer = 'd'
    -- A lowered limit may leave many: at most 1,000 go at once, so that no publish blocks the server.
    for _, dropped in ipairs(redis.call('RPOP', pending, math.min(over, 1000))) do
      if is_message(dropped) then answer = answer .. id_of(dropped) end
    end
  end
  if silent then redis.call('LPUSH', bell, '1') end
end

remember(reply, call, answer, keep_ms)
return tonumber(answer) or answer
