-- enqueue.lua: stores a chunk of messages, to wait in their lists or to be delayed: all or none, once for each call.
-- KEYS  pending | wakeup | deliveries | leases | tenant_ring | tenant_backlog | weights | delayed | delayed_messages
--       journal | meta | reply | longest: for a queue that drops messages
--       markers...: each remembers which message has a deduplication key
-- ARGV  keep_ms | tenant_pending | expired | window_ms: how long a marker suppresses duplicates
--       limit (number): how many may wait, 0 for any number
--       tenant_limit (number): how many of one tenant may wait, 0 for any number
--       overload: what to do at a limit, 'refuse' or 'drop' | call
--       base: what the ids begin with; the place in the chunk follows
--       form: 'bare' if only payloads follow; 'ready' if all messages are due now, and each has a marker, in their
--       order, or none has; else 'full'
--       messages...: for each message its payload; in the form 'ready' its preamble (its flags, and what stands between
--       the time stamp and the payload) and payload; in the form 'full' its due, marker and body
--       due: '' for now, microseconds of the server's clock, or '+' and microseconds from now
--       marker: its place among the markers, 0 for none | body: flags and what follows the time stamp
-- Returns '1' or '0' for each message, stored or a duplicate, then the ids of messages that were dropped to make room;
--       or '-' if there is no room for the chunk.
--@include reply
if answer then
  -- A write of this connection, so that a WAIT after it has something to wait for. (PSETEX would fail without memory.)
  redis.call('PEXPIRE', reply, keep_ms)
  return answer
end
--@include state
--@include clock
local count = #messages / (form == 'bare' and 1 or form == 'ready' and 2 or 3)
if count > MAX_MESSAGES then error(TOO_MANY, 0) end

if form == 'bare' and limit == 0 and not journaled then
  -- The fast path: only payloads, and no limit.
  local silent = redis.call('LLEN', wakeup) == 0
  local stamp, pack = struct.pack('>I8', now), struct.pack
  local longest_body = 0
  for place = 1, count do
    longest_body = math.max(longest_body, #messages[place])
    messages[place] = '\128' .. base .. pack('>I2', place) .. stamp .. messages[place]
  end
  remember_largest(longest_body + 25)
  local was_empty = redis.call('LPUSH', pending, unpack(messages)) == count
  if was_empty and silent then redis.call('LPUSH', wakeup, '1') end
  local marks = string.rep('1', count)
  redis.call('PSETEX', reply, keep_ms, call .. marks)
  return marks
end

local drops, stored_event = overload == 'drop', 'published'
--@include wake
--@include enqueue
--@include remember
local marks, plan
if form == 'full' then
  marks, plan = plan_messages(read_messages(messages, 1, count, base, markers))
else
  local stored, payloads = {}, {}
  for place = 1, count do
    local preamble, payload = '\128', messages[place]
    if form == 'ready' then preamble, payload = messages[2 * place - 1], messages[2 * place] end
    local id = base .. struct.pack('>I2', place)
    stored[place] = string.sub(preamble, 1, 1) .. id .. stamp .. string.sub(preamble, 2) .. payload
    payloads[place] = payload
  end
  marks, plan = plan_messages(stored, markers, {}, payloads)
end
local result = '-'
if plan then
  local wakes, dropped = store_messages(plan, window_ms)
  result = table.concat(marks) .. dropped
  if wakes then wake() end
  write_journal()
end
return remember(result)
