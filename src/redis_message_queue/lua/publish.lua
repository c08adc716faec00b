-- publish.lua: stores one message without a tenant, a delay or a limit, once for each call.
-- KEYS  pending | wakeup | journal | meta | reply
--       marker: remembers which message has the deduplication key (left out without one)
-- ARGV  keep_ms | call | head: flags and id | body: what follows the time stamp
--       window_ms: how long the marker suppresses duplicates
-- Returns 1 if it was published, 0 if it is a duplicate. Any other message goes through enqueue.lua.
--@include reply
if answer then
  -- A write of this connection, so that a WAIT after it has something to wait for. (PSETEX would fail without memory.)
  redis.call('PEXPIRE', reply, keep_ms)
  return tonumber(answer)
end

-- Everything that can fail is read before the first write: a key of a wrong type, or one that has moved, fails here.
--@include state
--@include clock
local first = marker and redis.call('GET', marker)
local published, id = first and 0 or 1, string.sub(head, 2)
if published == 1 then
  remember_largest(#head + 8 + #body)
  -- If the list was not empty, its wake-up is already there, or with a consumer that will pass it on.
  if redis.call('LPUSH', pending, head .. struct.pack('>I8', now) .. body) == 1 then
    local wakeups = redis.pcall('LLEN', wakeup)
    if wakeups == 0 then
      redis.call('LPUSH', wakeup, '1')
    elseif type(wakeups) == 'table' then
      redis.call('LPOP', pending)
      return wakeups
    end
  end
  if marker then redis.call('PSETEX', marker, window_ms, id) end
end
if journaled then
  --@include journal
  if first then
    record_event('duplicate', id, '', 'of', #first == 16 and hex(first) or '')
  elseif journaled == '1' then
    record_event('published', id, '', 'payload', body)
  else
    record_event('published', id, '')
  end
  write_journal()
end
redis.call('PSETEX', reply, keep_ms, call .. published)
return published
