-- ack_batch.lua: notes that all claims of a consumer group up to a number are handled, and removes a part of them.
-- KEYS  deliveries | group | members: the messages of the claim to clear | groups | journal | meta
-- ARGV  whose: the group's name | query: who calls | epoch: the caller's
--       upto (number): the last claim that is handled
--       number (number): of the claim to clear, the first that is not cleared
--       jump (flag): 1 if claims that Redis does not know are lost and given up, and numbers continue behind them
-- Returns {acked, cleared}: up to which claims are handled, and up to which they are removed.
--@include group
--@include batch
--@include state
--@include clock
--@include journal
--@include envelope
--@include bounded
--@include check_types
check_types('HLEN', groups, deliveries)
check_types('LLEN', members)
local sealed, acked, cleared = progress.sealed, progress.acked, progress.cleared
if upto > sealed then
  local nothing_left = cleared == sealed and batch_of(sealed + 1).places == 0
  if not jump or not nothing_left then error('OVERTAKEN: claims are sealed up to number ' .. sealed, 0) end
  redis.call('HDEL', group, '')
  redis.call('HSET', group, 'sealed', upto, 'acked', upto, 'cleared', upto)
  return {upto, upto}
end
local handled = math.max(acked, upto)
local clears = number == cleared + 1 and number <= handled
if handled == acked and not clears then return {acked, cleared} end

local head, ids, empty, is_last = {}, {}, 0, true
if clears then
  -- If no message has an entry, and there is no journal, the messages need not be read.
  local reads, budget = batch.known > 0 or journaled, new_budget(batch.widest)
  local wanted = math.min(batch.places, MAX_MESSAGES)
  while reads and #head < wanted and not budget.is_spent() do
    local piece = budget.next_piece(wanted - #head)
    local some = redis.call('LRANGE', members, #head, #head + piece - 1)
    for _, member in ipairs(some) do
      budget.count(member)
      head[#head + 1] = member
    end
    reads = #some == piece
  end
  is_last = not reads or #head >= batch.places
  for _, member in ipairs(head) do
    local stored = from_member(member)
    if member == EMPTY then
      empty = empty + 1
    elseif stored and is_message(stored) then
      if has_entry(stored) then ids[#ids + 1] = id_of(stored) end
      record_event('acked', id_of(stored), tenant_of(stored))
    end
  end
end

-- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
redis.call('HDEL', group, '')
redis.call('HSET', group, 'acked', handled)
if clears then
  if #ids > 0 then redis.call('HDEL', deliveries, unpack(ids)) end
  if is_last then
    write_batch(number, {messages = 0, empty = 0}, -batch.messages)
    redis.call('HSET', group, 'cleared', number)
    redis.call('UNLINK', members)
    cleared = number
  else
    batch.messages, batch.empty = batch.messages - #head + empty, math.max(0, batch.empty - empty)
    write_batch(number, batch, empty - #head)
    redis.call('LTRIM', members, #head, -1)
  end
  write_journal()
end
return {handled, cleared}
