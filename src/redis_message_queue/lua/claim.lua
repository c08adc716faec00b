-- claim.lua: messages are leased to the caller: what came back first, then the heads of the lines, tenants in turn.
-- KEYS  pending: the line of messages without a tenant
--       processing: id, or token where there are no leases, to stored message
--       leases: id and nonce by deadline | deliveries: id to attempts and counts | bell: a token if there is work
--       watch: somebody is awake at the next deadline | dlq: payloads that were delivered too often or too late
--       records: what is remembered beside them | tenants: those with work, by virtual time
--       size: how many wait in the lines of tenants | weights: tenant to weight
--       delayed: id by due time | later: id to stored message | journal: what has happened
--       meta: version of what is stored, rules of the journal | reply: the caller's last answer
-- ARGV  keep_ms: how long the answer is kept | hold_ms: the same for an answer that holds messages
--       holder: 15 bytes that name the caller's slot | lease_us: length of a lease, 0 for none
--       most: how often a message may be delivered, 0 for any number | dlq_limit: length of dlq, 0 for any
--       ttl_us: how old a message may be, 0 for any age | line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       call: the caller's number for this call | count: how many to take, 0 to ask only what this call took before
--       slice_us: how long the caller will sleep if there is nothing
--       woken: 0 if the caller comes fresh, 1 if it has waited, 2 if it was on watch
-- Returns the stored messages alone, if they came from the line and were never delivered before: one as it is;
--       several in one text of MessagePack, which is cheaper than a list, or in a list if they are large;
--       otherwise {again, wait_us, dead, notes, stored, ticket, stored, ticket, ...}
--       again: 1 if there was more to tidy up than one script may do, and it should be called at once
--       wait_us: when the next lease ends or the next delay, if it is for the caller to be awake then, else -1
--       dead: id, count and reason, ... of what went to the dead letters on the way
--       notes: what went wrong with trimming, or ''
--       ticket: 'attempts:count:origin:failures', where origin is 'line' or 'lease'
local pending, processing, leases, deliveries, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local tenants, delayed, journal, meta, reply = KEYS[9], KEYS[12], KEYS[14], KEYS[15], KEYS[16]
local keep_ms, hold_ms, holder, lease_us, ttl_us = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[7])
local call, count, woken = ARGV[10], tonumber(ARGV[11]), ARGV[13]
local leased = lease_us > 0
if count > 1000 then error('at most 1,000 messages in one call', 0) end
--@include reply
--@include journal
--@include nonce
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local deadline = now + lease_us

-- A first write that a full server refuses is repeated behind one that it accepts and that removes nothing: a queue
-- that has filled its server must be drained by its consumers.
local function hold(...)
  local refused = redis.pcall('HSET', processing, ...)
  if type(refused) == 'number' then return end
  redis.call('ZREM', leases, '')
  redis.call('HSET', processing, ...)
end

-- The usual case in a straight line, at half the price of what follows: nothing is due, no tenant waits, and the
-- head of the line was never delivered before. (See lib/envelope.lua for the bytes.)
local byte, sub = string.byte, string.sub
local function is_plain(stored, flags)
  return byte(stored, 1) == flags and byte(stored, 18) == 0 and #stored >= 25
    and (ttl_us == 0 or struct.unpack('>I8', sub(stored, 18, 25)) + ttl_us > now)
end
--@include bounded

if count > 0 and woken < '2' and not answer and not journaled then
  local unusual
  if leased then
    local due = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 2)
    unusual = due[1]
    -- Nearly as usual: tenants wait and nothing else is to be done. One of them gives the head of its line.
    if unusual == 'r' and not due[2] and count == 1 and redis.call('LLEN', pending) == 0 then
      local size, weights, line, returned = KEYS[10], KEYS[11], ARGV[8], ARGV[9]
      local tenant, score = unpack(redis.call('ZRANGE', tenants, 0, 0, 'WITHSCORES'))
      tenant = tenant or ''
      local key = line .. tenant
      local only_its_line = tenant ~= '' and tonumber(score) < 8589934592 -- see lib/lines.lua
        and redis.call('EXISTS', returned .. tenant) == 0
      local head = only_its_line and redis.call('LRANGE', key, -2, -1) or {}
      local stored = head[#head]
      local weight = stored and redis.call('HGET', weights, tenant)
      local whole = stored and #stored > 26 and #stored >= 26 + byte(stored, 26)
      if whole and not weight and is_plain(stored, 0x81) then
        local id = sub(stored, 2, 17)
        local later = math.floor(score) + 27720 -- see lib/lines.lua
        local last = redis.call('ZREVRANGEBYSCORE', tenants, '(' .. later + 1, later, 'LIMIT', 0, 1, 'WITHSCORES')[2]
        local tokens = woken == '1' and redis.call('LLEN', bell)
        local others = #head == 2 or redis.call('ZCARD', tenants) > 1
        hold(id, stored)
        redis.call('ZADD', leases, deadline, id .. nonce)
        redis.call('RPOP', key)
        if #head == 2 then
          redis.call('ZADD', tenants, last and last + 1 / 262144 or later, tenant)
        else
          redis.call('ZREM', tenants, tenant)
          if not others then redis.call('ZREM', leases, 'r') end
        end
        local waiting = redis.pcall('DECR', size)
        if type(waiting) == 'number' and waiting <= 0 then redis.call('UNLINK', size) end
        if others and tokens == 0 then redis.call('LPUSH', bell, '1') end
        redis.call('PSETEX', reply, hold_ms, call .. 'u' .. id)
        return stored
      end
    end
  else
    unusual = redis.call('EXISTS', tenants, delayed) > 0
  end
  if not unusual and count == 1 then
    local stored = redis.call('LINDEX', pending, -1)
    if stored and is_plain(stored, 0x80) then
      local id = sub(stored, 2, 17)
      local tokens = woken == '1' and redis.call('LLEN', bell)
      local waiting = woken == '1' and redis.call('LLEN', pending)
      hold(leased and id or id .. nonce, stored)
      if leased then redis.call('ZADD', leases, deadline, id .. nonce) end
      redis.call('RPOP', pending)
      if woken == '1' and waiting > 1 and tokens == 0 then redis.call('LPUSH', bell, '1') end
      redis.call('PSETEX', reply, hold_ms, call .. 'u' .. id)
      return stored
    end
  elseif not unusual then
    local messages, bodies, deadlines, ids, all_plain = {}, {}, {}, {}, true
    while all_plain and #messages < count and not is_much() do
      local wanted = next_piece(count - #messages)
      local head = redis.call('LRANGE', pending, -#messages - wanted, -#messages - 1)
      for place = #head, 1, -1 do
        local stored = head[place]
        if is_much() then break end
        all_plain = is_plain(stored, 0x80)
        if not all_plain then break end
        local id, nth = sub(stored, 2, 17), #messages + 1
        count_bytes(stored)
        messages[nth], ids[nth] = stored, id
        bodies[2 * nth - 1], bodies[2 * nth] = leased and id or id .. nonce, stored
        -- The place in the batch keeps messages that were claimed together in their order when they come back.
        deadlines[2 * nth - 1], deadlines[2 * nth] = deadline + nth, id .. nonce
      end
      if #head < wanted then break end
    end
    if all_plain and #messages > 0 then
      local tokens = redis.call('LLEN', bell)
      local others = redis.call('LLEN', pending) > #messages
      hold(unpack(bodies))
      if leased then redis.call('ZADD', leases, unpack(deadlines)) end
      redis.call('RPOP', pending, #messages)
      if woken == '1' and tokens == 0 and others then redis.call('LPUSH', bell, '1') end
      redis.call('PSETEX', reply, hold_ms, call .. 'u' .. table.concat(ids))
      return bytes_read < 1000000 and cmsgpack.pack(messages) or messages
    end
  end
end

--@include envelope
--@include ledger
--@include record
local watch, dlq, records, size, weights, later = KEYS[6], KEYS[7], KEYS[8], KEYS[10], KEYS[11], KEYS[13]
local most, dlq_limit, slice_us = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[12])
local line, returned = ARGV[8], ARGV[9]
--@include lines

-- The same call again: what it took and still holds is leased anew and read; the rest is left out.
if answer then
  local before
  if sub(answer, 1, 1) == 'u' then
    before = {again = 0, taken = {}, dead = {}}
    for at = 2, #answer, 16 do
      local nth = #before.taken
      before.taken[nth + 1], before.taken[nth + 2] = sub(answer, at, at + 15), 1
      before.taken[nth + 3], before.taken[nth + 4], before.taken[nth + 5] = 1, 'line', 0
    end
  else
    before = cmsgpack.unpack(answer)
  end
  local result, tokens, bodies, deadlines = {before.again, -1, before.dead, ''}, '', {}, {}
  for place = 1, #before.taken, 5 do
    local id = before.taken[place]
    tokens = tokens .. id .. nonce
    bodies[#bodies + 1] = redis.call('HGET', processing, leased and id or id .. nonce)
  end
  --@include held
  local found = #ids > 0 and find_leases(bodies) or {}
  for nth, stored in ipairs(bodies) do
    if stored and found[nth] then
      deadlines[#deadlines + 1] = deadline + nth
      deadlines[#deadlines + 1] = members[nth]
      result[#result + 1] = stored
      result[#result + 1] = string.format('%d:%d:%s:%d', unpack(before.taken, 5 * nth - 3, 5 * nth))
    end
  end
  if leased and #deadlines > 0 then
    check_lines()
    redis.call('ZREM', leases, '') -- first, because a server without memory refuses ZADD alone; it removes nothing
    redis.call('ZADD', leases, unpack(deadlines))
    for tenant, theirs in pairs(came_back) do leave_returned(tenant, theirs) end
  end
  return result
end

local silent = redis.call('LLEN', bell) == 0
bytes_read, piece = 0, 1
--@include choose
--@include alarm

-- Now write: what must last before what is taken away, many at a time.
local bodies, deadlines, entries, before, old_fields = {}, {}, {}, {}, {}
for place, one in ipairs(taken) do
  local known = one.attempts > 1 or has_entry(one.stored)
  if one.origin == 'line' or not leased or (known and not has_entry(one.stored)) then
    bodies[#bodies + 1] = leased and one.id or one.id .. nonce
    bodies[#bodies + 1] = known and with_entry(one.stored) or one.stored
  end
  if one.origin == 'lease' and not leased then old_fields[#old_fields + 1] = one.id end
  if known then
    entries[#entries + 1] = one.id
    entries[#entries + 1] = write_entry(one.attempts, one.times, one.failures)
  end
  deadlines[#deadlines + 1] = deadline + place
  deadlines[#deadlines + 1] = one.id .. nonce
  before[#before + 1] = one.member -- the lease that ran out
end
if #bodies > 0 then redis.call('HSET', processing, unpack(bodies)) end
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
if leased and #deadlines > 0 then redis.call('ZADD', leases, unpack(deadlines)) end
if #before > 0 then redis.call('ZREM', leases, unpack(before)) end
if #old_fields > 0 then redis.call('HDEL', processing, unpack(old_fields)) end

local notes = take_away()
tell_choice()
local next_at, in_turns = set_alarms()
if leased then
  local first = still('ZRANGE', leases, 0, 1, 'WITHSCORES') or {}
  next_at = first[1] == 'r' and first[4] or first[2]
  if first[1] == 'r' and not first[3] then next_at = nil end
end
local next_us = next_at and next_at - now

-- The baton: whoever took the token, or would have, and leaves work behind rings; so does a watcher that leaves.
local again = count > 0 and #taken == 0 and (unfinished or is_enough() or in_turns > 0) and 1 or 0
local left_behind = #taken > 0
  and ((next_us and next_us <= 0) or in_turns > 0 or (still('LLEN', pending) or 0) > 0)
if woken == '2' then
  redis.call('UNLINK', watch)
  left_behind = left_behind or (next_us and next_us < 1000000 and (#taken > 0 or slice_us == 0))
end
if left_behind and silent then redis.pcall('LPUSH', bell, '1') end

local wait_us = -1
if #taken == 0 and again == 0 and next_us and next_us > 0 and next_us < slice_us then
  -- Whoever is on watch for a later moment would sleep through this one.
  local watched = redis.pcall('GET', watch)
  if not watched or (type(watched) == 'string' and (tonumber(watched) or 0) > tonumber(next_at)) then
    local mine = redis.pcall('SET', watch, next_at, 'PX', math.ceil(next_us / 1000))
    if mine.ok then wait_us = next_us end
  end
end

local tickets, mourned = {}, {}
local result = {again, wait_us, mourned, notes}
for _, one in ipairs(taken) do
  for _, part in ipairs({one.id, one.attempts, one.times, one.origin, one.failures}) do tickets[#tickets + 1] = part end
  result[#result + 1] = one.stored
  result[#result + 1] = string.format('%d:%d:%s:%d', one.attempts, one.times, one.origin, one.failures)
end
for _, one in ipairs(dead) do
  for _, part in ipairs({one.id, one.times, one.reason}) do mourned[#mourned + 1] = part end
end
-- An empty answer is remembered too, so that a straggler cannot claim for a caller who has gone on.
write_journal(now)
local stored_for = #taken > 0 and hold_ms or keep_ms
redis.call('PSETEX', reply, stored_for, call .. cmsgpack.pack({again = again, taken = tickets, dead = mourned}))
return result
