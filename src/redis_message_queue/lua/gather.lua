-- gather.lua: the next messages enter the open claim of a consumer group: what came back first, then the lines in turn.
-- KEYS  pending: the line of messages without a tenant | processing: id to stored message
--       leases: id and nonce by deadline | deliveries: id to attempts and counts | bell: a token if there is work
--       dlq: payloads that were delivered too often or too late | records: what is remembered beside them
--       tenants: those with work, by virtual time | size: how many wait in the lines of tenants
--       weights: tenant to weight | delayed: id by due time | later: id to stored message
--       group: what is known of the consumer group | members: the messages of its open claim
--       groups: how many messages lie in each group | journal: what has happened
--       meta: version of what is stored, rules of the journal
-- ARGV  line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       most: how often a message may be delivered, 0 for any number | dlq_limit: length of dlq, 0 for any
--       ttl_us: how old a message may be, 0 for any age | whose: the group's name
--       epoch: the caller's | number: of the open claim | part: which call this is for that number, from 1
--       count: how many to take, at most 10,000
-- Returns {part, added, length, again}
--       part: this one, or the one before if there was nothing to do and the number is free for the next call
--       added: how many messages this part has brought | length: how many lie in the claim now
--       again: 1 if there was more to tidy up than one script may do, and it should be called at once
local pending, processing, leases, deliveries, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dlq, records, tenants, size, weights = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local delayed, later, group, members, groups = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local journal, meta = KEYS[16], KEYS[17]
local line, returned, most, dlq_limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local ttl_us, whose, epoch, number = tonumber(ARGV[5]), ARGV[6], ARGV[7], tonumber(ARGV[8])
local part, count = tonumber(ARGV[9]), tonumber(ARGV[10])
if count > 10000 then error('at most 10,000 messages in one call', 0) end
--@include group

local length, known = counted(number)
local done, done_added, done_again = string.match(redis.call('HGET', group, 'part') or '0:0:0', '^(%d+):(%d+):(%d)$')
if not done then error('the group holds a foreign value', 0) end
if number ~= sealed + 1 or part < tonumber(done) or part > done + 1 then
  error('OVERTAKEN by a later call of the same caller', 0)
end
if part == tonumber(done) then return {part, tonumber(done_added), length, tonumber(done_again)} end
--@include journal

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local silent = redis.call('LLEN', bell) == 0
redis.call('LLEN', members)
redis.call('HLEN', groups)

-- What must last is written before what is taken away; this part is done when the script ends. The first write is one
-- that a server without memory accepts: a full queue must be drained.
local function enter(messages, with_entries, again)
  redis.call('HDEL', group, '')
  for first = 1, #messages, 1000 do
    redis.call('RPUSH', members, unpack(messages, first, math.min(first + 999, #messages)))
  end
  if #messages > 0 then count_members(number, length + #messages, known + with_entries, #messages) end
  redis.call('HSET', group, 'part', string.format('%d:%d:%d', part, #messages, again))
end

-- The usual case: nothing is due, no tenant waits, nobody wants to be told, and the head of the line was never
-- delivered before. (See lib/envelope.lua for the bytes.)
--@include bounded
if not journaled and not redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1)[1] then
  local byte, plain, all_plain = string.byte, {}, true
  while all_plain and #plain < count and not is_much() do
    local wanted = next_piece(count - #plain)
    local head = redis.call('LRANGE', pending, -#plain - wanted, -#plain - 1)
    for place = #head, 1, -1 do
      local stored = head[place]
      all_plain = byte(stored, 1) == 0x80 and byte(stored, 18) == 0 and #stored >= 25
        and (ttl_us == 0 or struct.unpack('>I8', string.sub(stored, 18, 25)) + ttl_us > now)
      if not all_plain or is_much() then break end
      count_bytes(stored)
      plain[#plain + 1] = stored
    end
    if #head < wanted then break end
  end
  if #plain == 0 and all_plain then return {part - 1, 0, length, 0} end
  if #plain > 0 then
    local others = redis.call('LLEN', pending) > #plain
    enter(plain, 0, 0)
    if others and silent then redis.call('LPUSH', bell, '1') end
    redis.call('LTRIM', pending, 0, -#plain - 1)
    return {part, #plain, length + #plain, 0}
  end
end

-- Any other case: message by message, as a claim does it.
count, bytes_read, piece = math.min(count, 1000), 0, 1
local leased = true -- a queue without leases has none in `leases`, and loses nothing by the look
--@include envelope
--@include ledger
--@include record
--@include lines
--@include choose
--@include alarm
--@include member
local messages, entries, ids_in_flight, ended = {}, {}, {}, {}
for place, one in ipairs(taken) do
  local known = one.attempts > 1 or has_entry(one.stored)
  messages[place] = as_member(known and with_entry(one.stored) or one.stored, one.times)
  if known then
    entries[#entries + 1] = one.id
    entries[#entries + 1] = write_entry(one.attempts, one.times, one.failures)
  end
  if one.origin == 'lease' then ids_in_flight[#ids_in_flight + 1] = one.id end
  ended[#ended + 1] = one.member
end
local idle = #taken + #dead + #gone + #left_leases == 0
if #messages > 0 then enter(messages, #entries / 2, 0) end
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
take_away()
if #ids_in_flight > 0 then still('HDEL', processing, unpack(ids_in_flight)) end
if #ended > 0 then still('ZREM', leases, unpack(ended)) end
tell_choice()
local _, in_turns = set_alarms()
local again = #taken == 0 and (unfinished or is_enough() or in_turns > 0) and 1 or 0
local others = in_turns > 0 or (still('LLEN', pending) or 0) > 0
if #taken > 0 and silent and others then redis.pcall('LPUSH', bell, '1') end
if idle then return {part - 1, 0, length, again} end
if #messages == 0 then enter(messages, 0, again) end
write_journal(now)
return {part, #messages, length + #messages, again}
