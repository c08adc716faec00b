-- acknowledge.lua: everything up to a claim of a consumer group is handled, and a bounded part of it goes.
-- KEYS  deliveries: id to attempts and counts | group: what is known of the consumer group
--       members: the messages of the claim to be cleared | groups: how many messages lie in each group
--       journal: what has happened | meta: version of what is stored, rules of the journal
-- ARGV  whose: the group's name | epoch: the caller's | upto: the last claim that is handled
--       number: of the claim to be cleared, the first that is not
--       jump: 1 if claims that Redis does not know are lost and given up, and numbers go on behind them
-- Returns {acked, cleared}: up to which claims are handled, and up to which they are gone.
local deliveries, group, members, groups = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local journal, meta = KEYS[5], KEYS[6]
local whose, epoch, upto, number = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local jump = ARGV[5] == '1'
local STEPS = 1000
--@include group
--@include member
--@include envelope
--@include journal
--@include bounded
redis.call('HLEN', groups)
redis.call('HLEN', deliveries)
redis.call('LLEN', members)
if upto > sealed then
  local empty = cleared == sealed and counted(sealed + 1) == 0
  if not jump or not empty then error('OVERTAKEN: claims are sealed up to number ' .. sealed, 0) end
  redis.call('HDEL', group, '')
  redis.call('HSET', group, 'sealed', upto, 'acked', upto, 'cleared', upto)
  return {upto, upto}
end
local handled, clears = math.max(acked, upto), number == cleared + 1 and number <= math.max(acked, upto)
if handled == acked and not clears then return {acked, cleared} end

local count, known, head, ids, is_last = 0, 0, {}, {}, true
if clears then
  count, known = counted(number)
  -- Where no message has an entry, and nobody wants to be told, nothing has to be looked at.
  local looks = known > 0 or journaled
  while looks and #head < math.min(count, STEPS) and not is_much() do
    local wanted = next_piece(math.min(count, STEPS) - #head)
    local some = redis.call('LRANGE', members, #head, #head + wanted - 1)
    for _, member in ipairs(some) do
      count_bytes(member)
      head[#head + 1] = member
    end
    looks = #some == wanted
  end
  is_last = not looks or #head >= count
  for _, member in ipairs(head) do
    local stored = stored_in(member)
    if stored and has_entry(stored) then ids[#ids + 1] = id_of(stored) end
    if stored then tell('acked', id_of(stored), tenant_of(stored)) end
  end
end

-- The first write is one that a server without memory accepts: a full queue can always be emptied.
redis.call('HDEL', group, '')
redis.call('HSET', group, 'acked', handled)
if clears then
  if #ids > 0 then redis.call('HDEL', deliveries, unpack(ids)) end
  if is_last then
    count_members(number, 0, 0, -count)
    redis.call('HSET', group, 'cleared', number)
    redis.call('UNLINK', members)
    cleared = number
  else
    count_members(number, count - #head, known, -#head)
    redis.call('LTRIM', members, #head, -1)
  end
  local time = redis.call('TIME')
  write_journal(time[1] * 1000000 + time[2])
end
return {handled, cleared}
