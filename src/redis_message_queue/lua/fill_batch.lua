-- fill_batch.lua: moves the next messages to the open claim of a consumer group, in the order of claim.lua.
-- KEYS  pending | processing | leases | deliveries | wakeup | dlq | records: those of dlq | tenant_ring
--       tenant_backlog | weights | delayed | delayed_messages | cancelled | tenant_in_flight | group
--       members: the messages of the open claim
--       groups | journal | meta
-- ARGV  tenant_pending | expired | most (number): how often a message may be delivered, 0 for any number
--       dlq_limit (number): length of dlq, 0 for any | ttl_us (number): how old a message may be, 0 for any age
--       whose: the group's name | query: who calls | epoch: the caller's | number (number): of the open claim
--       part (number): which call this is for that claim, from 1 | count (number): how many to take, at most 10,000
-- Returns {part, added, length, again, dead, trimming}
--       part: this one, or the one before if there was nothing to do and the next call can use the number
--       added: how many messages this part brought | length: how many the claim holds now
--       again: 1 if there was more housekeeping than one script may do: call again immediately
--       dead and trimming: as claim.lua returns them
if count > 10000 then error('at most 10,000 messages in one call', 0) end
--@include group
--@include batch

local length = batch.messages
local done, done_added, done_again = string.match(stored_part, '^(%d+):(%d+):(%d)$')
if not done then error('the group holds a foreign value', 0) end
if number ~= progress.sealed + 1 or part < tonumber(done) or part > done + 1 then
  error('OVERTAKEN by a later call of the same caller', 0)
end
if part == tonumber(done) then
  local news = redis.call('HGET', group, 'dead')
  local letters, trimming = unpack(news and cmsgpack.unpack(news) or {{}, ''})
  return {part, tonumber(done_added), length, tonumber(done_again), letters, trimming}
end
--@include state
if paused then return {part - 1, 0, length, 0, {}, ''} end
--@include clock
--@include plain
--@include emptied
-- Mostly nothing is due, no tenant waits, and the head of `pending` is plain, or there is none.
local nothing_due = not cancels and not redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1)[1]
local plain, all_plain, largest_plain, _ = {}, false, 0, nil
if nothing_due and not journaled then
  plain, all_plain, _, largest_plain = read_plain(pending, 0x80, count)
elseif nothing_due then
  all_plain = redis.call('LLEN', pending) == 0
end
if #plain == 0 and all_plain then
  forget_emptied()
  return {part - 1, 0, length, 0, {}, ''}
end
--@include wake
redis.call('LLEN', members)
redis.call('HLEN', groups)

-- Stores the messages before the script removes them from where they waited. Its first write is one that a full server
-- accepts: see rule 2 of README.md.
local function add_members(messages, with_entries, again, largest_added)
  redis.call('HDEL', group, 'dead')
  for first = 1, #messages, MAX_MESSAGES do
    redis.call('RPUSH', members, unpack(messages, first, math.min(first + MAX_MESSAGES - 1, #messages)))
  end
  if #messages > 0 then
    batch.messages, batch.known = length + #messages, batch.known + with_entries
    batch.widest = math.max(batch.widest, largest_added)
    write_batch(number, batch, #messages)
  end
  redis.call('HSET', group, 'part', string.format('%d:%d:%d', part, #messages, again))
end

-- The fast path.
if #plain > 0 then
  local others = redis.call('LLEN', pending) > #plain
  add_members(plain, 0, 0, largest_plain)
  if others then wake() end
  redis.call('LTRIM', pending, 0, -#plain - 1)
  return {part, #plain, length + #plain, 0, {}, ''}
end

-- Any other case: message by message, as a claim does it.
local leased = true -- a queue without leases has nothing in `leases`, and loses nothing if the script looks there
-- What a streaming query holds is not in flight, and has no limit.
local parks, in_flight_limit = paused_tenants or counts, 0
if parks then redis.call('ZCARD', tenant_in_flight) end
--@include select
select_messages(math.min(count, MAX_MESSAGES))
local messages, entries, old_fields, old_leases, largest_taken = {}, {}, {}, {}, 0
for place, one in ipairs(taken) do
  local is_known = one.attempts > 1 or has_entry(one.stored)
  messages[place] = to_member(is_known and with_entry(one.stored) or one.stored, one.times)
  largest_taken = math.max(largest_taken, #messages[place])
  if is_known then
    entries[#entries + 1] = one.id
    entries[#entries + 1] = write_entry(one.attempts, one.times, one.failures)
  end
  if one.origin == 'lease' then old_fields[#old_fields + 1] = one.id end
  old_leases[#old_leases + 1] = one.member
end
if #messages > 0 then add_members(messages, #entries / 2, 0, largest_taken) end
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
local trimming, letters = remove_selected(), {}
if #old_fields > 0 then try_call('HDEL', processing, unpack(old_fields)) end
for _, one in ipairs(counts and taken or {}) do leave_flight(tenant_of(one.stored), {one.id}) end
if #old_leases > 0 then try_call('ZREM', leases, unpack(old_leases)) end
record_selected('')
local _, in_ring = set_alarms()
local again = #taken == 0 and (has_more() or in_ring > 0) and 1 or 0
local others = in_ring > 0 or (try_call('LLEN', pending) or 0) > 0
if #taken > 0 and silent and others then redis.pcall('LPUSH', wakeup, '1') end
if found_nothing() then
  forget_emptied()
  return {part - 1, 0, length, again, {}, ''}
end
if #messages == 0 then add_members(messages, 0, again, 0) end
for _, one in ipairs(dead) do
  for _, detail in ipairs({one.id, one.times, one.reason}) do letters[#letters + 1] = detail end
end
if #letters > 0 then redis.call('HSET', group, 'dead', cmsgpack.pack({letters, trimming})) end
write_journal()
return {part, #messages, length + #messages, again, letters, trimming}
