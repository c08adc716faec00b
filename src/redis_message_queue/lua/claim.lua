-- claim.lua: messages are leased to the caller, first those whose lease ran out, then the head of the line.
-- KEYS  pending: the line | processing: id to stored message | leases: id by deadline
--       deliveries: id to lease number and count | bell: a token if there is work
--       watch: somebody is awake at the next deadline | dlq: payloads that were delivered too often
--       reply: the caller's last answer
-- ARGV  keep_ms: how long the answer is kept | lease_us: length of a lease, 0 for none
--       most: how often a message may be delivered, 0 for any number | dlq_limit: length of dlq, 0 for any
--       call: the caller's number for this call | count: how many to take, 0 to ask only what this call took before
--       slice_us: how long the caller will sleep if there is nothing
--       woken: 0 if the caller comes fresh, 1 if it has waited, 2 if it was on watch
-- Returns the stored message alone, if it came from the line and was never delivered before; otherwise
--       {again, wait_us, dead, notes, stored, ticket, stored, ticket, ...}
--       again: 1 if there was more to tidy up than one script may do, and it should be called at once
--       wait_us: when the next lease ends, if it is for the caller to be awake then, else -1
--       dead: id and count, id and count, ... of what went to the dead letters on the way
--       notes: what went wrong with trimming, or ''
--       ticket: 'lease:count:origin', where origin is 'line' or 'lease'
local pending, processing, leases, deliveries, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local reply = KEYS[8]
local keep_ms, lease_us, call, count, woken = ARGV[1], tonumber(ARGV[2]), ARGV[5], tonumber(ARGV[6]), ARGV[8]
local leased = lease_us > 0
--@include reply
local now = 0
if leased then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- The usual case in a straight line, at half the price of what follows: a consumer comes for one message, no lease
-- has run out, and the head of the line was never delivered before. (See lib/envelope.lua for the bytes.)
if count == 1 and woken < '2' and not answer then
  local due = leased and redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1)[1]
  local stored = not due and redis.call('LINDEX', pending, -1)
  if stored and string.byte(stored, 1) == 0x80 and string.byte(stored, 18) == 0 and #stored >= 25 then
    local id = string.sub(stored, 2, 17)
    local tokens = woken == '1' and redis.call('LLEN', bell)
    local waiting = woken == '1' and redis.call('LLEN', pending)
    redis.call('HSET', processing, id, stored)
    if leased then redis.call('ZADD', leases, now + lease_us, id) end
    redis.call('RPOP', pending)
    if woken == '1' and waiting > 1 and tokens == 0 then redis.call('LPUSH', bell, '1') end
    redis.call('PSETEX', reply, keep_ms, call .. 'u' .. id)
    return stored
  end
end

--@include envelope
--@include ledger
local watch, dlq = KEYS[6], KEYS[7]
local most, dlq_limit, slice_us = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[7])
local STEPS = 1000 -- of housekeeping in one script: 200,000 dead letters at once blocked a server for 1.2 s

-- The same call again: what it took and still holds is leased anew and read; the rest is left out.
if answer then
  local usual = string.sub(answer, 1, 1) == 'u'
  local before = usual and {again = 0, taken = {string.sub(answer, 2), 1, 1, 'line'}, dead = {}}
    or cmsgpack.unpack(answer)
  local result, held, deadlines = {before.again, -1, before.dead, ''}, {}, {}
  for place = 1, #before.taken, 4 do
    local id, lease, times, origin = unpack(before.taken, place, place + 3)
    local stored = redis.call('HGET', processing, id)
    if stored and read_entry(deliveries, id, stored, 1) == lease then
      held[#held + 1] = id
      deadlines[#deadlines + 1] = now + lease_us + #held
      deadlines[#deadlines + 1] = id
      result[#result + 1] = stored
      result[#result + 1] = string.format('%d:%d:%s', lease, times, origin)
    end
  end
  if leased and #held > 0 then
    redis.call('ZREM', leases, '') -- first, because a server without memory refuses ZADD alone; it removes nothing
    redis.call('ZADD', leases, unpack(deadlines))
  end
  return result
end

-- First only look. `taken` and `dead` are decided here; nothing is written before all of it has been read.
local taken, dead, gone = {}, {}, {}
local steps, from_line = 0, 0
local silent = redis.call('LLEN', bell) == 0
local waiting = redis.call('LLEN', pending)
redis.call('HLEN', processing)
redis.call('HLEN', deliveries)

local function weigh(id, stored, usual, origin)
  local lease, times = read_entry(deliveries, id, stored, usual)
  if most > 0 and times >= most then
    dead[#dead + 1] = {id = id, payload = payload_of(stored), times = times}
    gone[#gone + 1] = id
  else
    taken[#taken + 1] = {id = id, stored = stored, lease = lease + 1, times = times + 1, origin = origin}
  end
end

-- As many as are wanted first; a hundred at a time once poison lies in the way.
local function next_chunk(seen)
  return math.min(seen == 0 and count - #taken or 100, STEPS - steps)
end

local function look_at_leases()
  local seen = 0
  while #taken < count and steps < STEPS do
    local ids = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', seen, next_chunk(seen))
    if #ids == 0 then return end
    local bodies = redis.call('HMGET', processing, unpack(ids))
    for place, id in ipairs(ids) do
      if #taken == count then return end
      seen, steps = seen + 1, steps + 1
      if bodies[place] then weigh(id, bodies[place], 1, 'lease') else gone[#gone + 1] = id end
    end
  end
end

local function look_at_line()
  while #taken < count and steps < STEPS do
    local chunk = next_chunk(from_line)
    local line = redis.call('LRANGE', pending, -from_line - chunk, -from_line - 1)
    for place = #line, 1, -1 do
      if #taken == count then return end
      local stored = line[place]
      from_line, steps = from_line + 1, steps + 1
      if is_message(stored) then
        weigh(id_of(stored), stored, 0, 'line')
      else
        -- Foreign bytes cannot be delivered and must not be lost: they become a dead letter as they are.
        dead[#dead + 1] = {id = '', payload = stored, times = 0}
      end
    end
    if #line < chunk then return end
  end
end

if count > 0 then
  if leased then look_at_leases() end
  look_at_line()
end
if #dead > 0 then redis.call('LLEN', dlq) end

-- Now write: what must last before what is taken away, many at a time.
local bodies, deadlines, entries = {}, {}, {}
for place, one in ipairs(taken) do
  local known = one.lease > 1
  if one.origin == 'line' or (known and not has_entry(one.stored)) then
    bodies[#bodies + 1] = one.id
    bodies[#bodies + 1] = known and with_entry(one.stored) or one.stored
  end
  if known then
    entries[#entries + 1] = one.id
    entries[#entries + 1] = write_entry(one.lease, one.times)
  end
  -- The place in the batch keeps messages that were claimed together in their order when they come back.
  deadlines[#deadlines + 1] = now + lease_us + place
  deadlines[#deadlines + 1] = one.id
end
if #bodies > 0 then redis.call('HSET', processing, unpack(bodies)) end
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
if leased and #deadlines > 0 then redis.call('ZADD', leases, unpack(deadlines)) end

local notes = ''
if #dead > 0 then
  local letters = {}
  for place, one in ipairs(dead) do letters[place] = one.payload end
  redis.call('LPUSH', dlq, unpack(letters))
end
if from_line > 0 then redis.call('RPOP', pending, from_line) end
if #gone > 0 then
  redis.call('HDEL', processing, unpack(gone))
  redis.call('HDEL', deliveries, unpack(gone))
  if leased then redis.call('ZREM', leases, unpack(gone)) end
end
if #dead > 0 and dlq_limit > 0 then
  local trimmed = redis.pcall('LTRIM', dlq, 0, dlq_limit - 1)
  if trimmed.err then notes = trimmed.err end
end

-- The baton: whoever took the token, or would have, and leaves work behind rings; so does a watcher that leaves.
local again = #taken == 0 and steps >= STEPS and 1 or 0
-- Under pcall: in a slot that is leaving, leases that were just emptied count as moved.
local next_us = leased and redis.pcall('ZRANGE', leases, 0, 0, 'WITHSCORES')[2]
next_us = next_us and next_us - now
local left_behind = #taken > 0 and ((next_us and next_us <= 0) or waiting > from_line)
if woken == '2' then
  redis.call('UNLINK', watch)
  left_behind = left_behind or (next_us and next_us < 1000000 and (#taken > 0 or slice_us == 0))
end
if left_behind and silent then redis.pcall('LPUSH', bell, '1') end

local wait_us = -1
if #taken == 0 and again == 0 and next_us and next_us > 0 and next_us < slice_us then
  local mine = redis.pcall('SET', watch, call, 'NX', 'PX', math.ceil(next_us / 1000))
  if mine and mine.ok then wait_us = next_us end
end

local tickets, mourned = {}, {}
local result = {again, wait_us, mourned, notes}
for _, one in ipairs(taken) do
  for _, part in ipairs({one.id, one.lease, one.times, one.origin}) do tickets[#tickets + 1] = part end
  result[#result + 1] = one.stored
  result[#result + 1] = string.format('%d:%d:%s', one.lease, one.times, one.origin)
end
for _, one in ipairs(dead) do
  mourned[#mourned + 1] = one.id
  mourned[#mourned + 1] = one.times
end
-- An empty answer is remembered too, so that a straggler cannot claim for a caller who has gone on. To prolong the old
-- one first lets this through on a server without memory.
if #taken == 0 then redis.call('PEXPIRE', reply, keep_ms) end
redis.call('PSETEX', reply, keep_ms, call .. cmsgpack.pack({again = again, taken = tickets, dead = mourned}))
return result
