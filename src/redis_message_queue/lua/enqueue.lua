-- enqueue.lua: stores messages once for each call: all or none of a chunk, or each message of a group by itself.
-- KEYS  pending | wakeup | deliveries | leases | tenant_ring | tenant_backlog | weights | delayed | delayed_messages
--       journal | meta | reply | longest: for a queue that drops messages
--       markers...: each remembers which message has a deduplication key
-- ARGV  keep_ms | tenant_pending | expired | window_ms: how long a marker suppresses duplicates
--       limit (number): how many may wait, 0 for any number
--       tenant_limit (number): how many of one tenant may wait, 0 for any number
--       overload: what to do at a limit, 'refuse' or 'drop' | call
--       base: what the ids begin with; the place in the chunk follows
--       form: 'bare' if only payloads follow; 'ready' if all messages are due now, and each has a marker, in their
--       order, or none has; else 'full'; 'each' for a group in a queue with a limit
--       messages...: for each message its payload; in the form 'ready' its preamble (its flags, and what stands between
--       the time stamp and the payload) and payload; in the forms 'full' and 'each' its due, marker and body
--       due: '' for now, microseconds of the server's clock, or '+' and microseconds from now
--       marker: its place among the markers, 0 for none | body: flags and what follows the time stamp
-- Returns '1' or '0' for each message, stored or a duplicate, then the ids of messages that were dropped to make room;
--       or '-' if there is no room for the chunk. In the form 'each' a message without room has '-', and '?' means
--       that it was not looked at: send it again. Each dropped id then stands behind the place of the message that it
--       made room for, in two bytes.
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

-- Without a limit, a chunk leads to the same as its messages one after the other. With a limit, each message is planned
-- behind the writes of those before it. Planning only reads: an error at the first message fails the script before it
-- has written anything. A later error ends it there, and so do MAX_MESSAGES or MAX_BYTES of dropped messages.
if form == 'each' then
  local stored, markers_of, due_times = read_messages(messages, 1, count, base, markers)
  local marks, dropped, wakes, bytes = {}, {}, false, 0
  for place = 1, count do
    local events = keep_events()
    local function plan_one() return plan_messages({stored[place]}, {markers_of[place]}, {due_times[place]}) end
    local is_planned, mark, plan = true, nil, nil
    if place == 1 then mark, plan = plan_one() else is_planned, mark, plan = pcall(plan_one) end
    if not is_planned or not plan then keep_events(events) end
    if not is_planned then break end
    marks[place] = plan and mark[1] or '-'
    if plan then
      local wakes_now, ids, read = store_messages(plan, window_ms)
      wakes, bytes = wakes or wakes_now, bytes + read
      for at = 1, #ids, 16 do dropped[#dropped + 1] = struct.pack('>I2', place) .. string.sub(ids, at, at + 15) end
    end
    if bytes >= MAX_BYTES or #dropped >= MAX_MESSAGES then break end
  end
  if wakes then wake() end
  write_journal()
  return remember(table.concat(marks) .. string.rep('?', count - #marks) .. table.concat(dropped))
end

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
