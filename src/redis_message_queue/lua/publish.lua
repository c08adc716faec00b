-- publish.lua: one message without a tenant or a delay enters a line without a limit, once for each call.
-- KEYS  pending: the line of messages without a tenant | bell: a token if there is work
--       journal: what has happened | meta: version of what is stored, rules of the journal
--       reply: the caller's last answer
--       marker: remembers which message has the deduplication key (left out without one)
-- ARGV  keep_ms: how long the answer is kept | call: the caller's number for this call
--       head: flags and id | body: what follows the time stamp | window_ms: how long the marker suppresses
-- Returns 1 published, 0 suppressed as a duplicate. Everything that is not so simple goes to enqueue.lua.
local pending, bell, journal, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local reply, marker = KEYS[5], KEYS[6]
local keep_ms, call, head = ARGV[1], ARGV[2], ARGV[3]
--@include reply
if answer then
  -- A write of this connection, so that a WAIT behind it waits for something. (Without memory PSETEX would fail here.)
  redis.call('PEXPIRE', reply, keep_ms)
  return tonumber(answer)
end

--@include journal

-- What can refuse is asked before the first write: a key of a wrong type, or one that has moved, fails here.
answer = 1
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local first = marker and redis.call('GET', marker)
if first then
  answer = 0
  tell('duplicate', string.sub(head, 2), '', 'of', #first == 16 and hex(first) or '')
else
  local stored = head .. struct.pack('>I8', now) .. ARGV[4]
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
  if marker then redis.call('PSETEX', marker, ARGV[5], string.sub(head, 2)) end
  if journaled == '1' then
    tell('published', string.sub(head, 2), '', 'payload', ARGV[4])
  else
    tell('published', string.sub(head, 2), '')
  end
end
write_journal(now)

redis.call('PSETEX', reply, keep_ms, call .. answer)
return answer
