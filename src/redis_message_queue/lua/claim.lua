-- claim.lua: messages are leased to the caller, first those whose lease ran out, then the head of the line.
-- KEYS  pending: the line | processing: id to stored message | leases: id by deadline
--       deliveries: id to lease number and count | bell: a token if there is work
--       watch: somebody is awake at the next deadline | dlq: payloads that were delivered too often
--       reply: the caller's last answer
-- ARGV  keep_ms: how long the answer is kept | lease_us: length of a lease, 0 for none
--       most: how often a message may be delivered, 0 for any number | dlq_limit: length of dlq, 0 for any
--       call: the caller's number for this call | count: how many to take, 0 to ask only what this call took before
--       slice_us: how long the caller will sleep if there is nothing | watching: 1 if the caller was on watch
-- Returns {again, wait_us, dead, notes, stored, ticket, stored, ticket, ...}
--       again: 1 if there was more to tidy up than one script may do, and it should be called at once
--       wait_us: when the next lease ends, if it is for the caller to be awake then, else -1
--       dead: id and count, id and count, ... of what went to the dead letters on the way
--       notes: what went wrong with trimming, or ''
--       ticket: 'lease:count:origin', where origin is 'line' or 'lease'
--@include reply
--@include clock
--@include envelope
--@include ledger
local pending, processing, leases, deliveries = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local bell, watch, dlq, reply = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local keep_ms, lease_us, most, dlq_limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local call, count, slice_us, watching = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1'
local leased = lease_us > 0
local STEPS = 1000 -- of housekeeping in one script: 200,000 dead letters at once blocked a server for 1.2 s

local now = now_us()

-- The same call again: what it took and still holds is leased anew and read; the rest is left out.
local function replay(answer)
  local before = cmsgpack.unpack(answer)
  local result = {before.again, -1, before.dead, ''}
  for place = 1, #before.taken, 4 do
    local id, lease, times, origin = unpack(before.taken, place, place + 3)
    local stored = redis.call('HGET', processing, id)
    if stored and read_entry(redis.call('HGET', deliveries, id), 1) == lease then
      if leased then redis.call('ZADD', leases, now + lease_us + place, id) end
      result[#result + 1] = stored
      result[#result + 1] = string.format('%d:%d:%s', lease, times, origin)
    end
  end
  return result
end

local answer = remembered(reply, call)
if answer then return replay(answer) end

-- First only look. `taken` and `dead` are decided here; nothing is written before all of it has been read.
local taken, dead, vanished = {}, {}, {}
local steps, from_line = 0, 0
local silent = redis.call('LLEN', bell) == 0

local function weigh(id, stored, entry, usual, origin)
  local lease, times = read_entry(entry, usual)
  if most > 0 and times >= most then
    dead[#dead + 1] = {id = id, payload = payload_of(stored), times = times}
  else
    local known = entry or origin == 'lease'
    taken[#taken + 1] =
      {id = id, stored = stored, lease = lease + 1, times = times + 1, known = known, origin = origin}
  end
end

-- As many as are wanted first; a hundred at a time once poison lies in the way.
local function next_chunk(looks)
  return math.min(looks == 0 and count - #taken or 100, STEPS - steps)
end

-- Returns whether more may be due.
local function look_at_leases()
  local seen = 0
  while #taken < count and steps < STEPS do
    local ids = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', seen, next_chunk(seen))
    if #ids == 0 then return false end
    local bodies = redis.call('HMGET', processing, unpack(ids))
    local entries = redis.call('HMGET', deliveries, unpack(ids))
    for place, id in ipairs(ids) do
      if #taken == count then return true end
      seen, steps = seen + 1, steps + 1
      if bodies[place] then
        weigh(id, bodies[place], entries[place], 1, 'lease')
      else
        vanished[#vanished + 1] = id
      end
    end
  end
  return true
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
        local id = id_of(stored)
        weigh(id, stored, redis.call('HGET', deliveries, id), 0, 'line')
      else
        -- Foreign bytes cannot be delivered and must not be lost: they become a dead letter as they are.
        dead[#dead + 1] = {id = '', payload = stored, times = 0}
      end
    end
    if #line < chunk then return end
  end
end

local due, more_due = {}, false
if count > 0 then
  if leased then
    due = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
    if due[2] and tonumber(due[2]) <= now then more_due = look_at_leases() end
  end
  look_at_line()
end
if #dead > 0 then redis.call('LLEN', dlq) end

-- Now write: what must last before what is taken away, many at a time.
local bodies, deadlines, entries = {}, {}, {}
for place, one in ipairs(taken) do
  if one.origin == 'line' then
    bodies[#bodies + 1] = one.id
    bodies[#bodies + 1] = one.stored
  end
  if one.known then
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
  local letters, ids = {}, vanished
  for place, one in ipairs(dead) do
    letters[place] = one.payload
    if one.id ~= '' then ids[#ids + 1] = one.id end
  end
  redis.call('LPUSH', dlq, unpack(letters))
end
if from_line > 0 then redis.call('RPOP', pending, from_line) end
if #vanished > 0 then
  redis.call('HDEL', processing, unpack(vanished))
  redis.call('HDEL', deliveries, unpack(vanished))
  if leased then redis.call('ZREM', leases, unpack(vanished)) end
end
if #dead > 0 and dlq_limit > 0 then
  local trimmed = redis.pcall('LTRIM', dlq, 0, dlq_limit - 1)
  if trimmed.err then notes = trimmed.err end
end

-- The baton: whoever leaves work behind rings, and a watcher that leaves rings for its successor.
local again = #taken == 0 and steps >= STEPS and 1 or 0
if #vanished > 0 and leased then due = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES') end
local next_us = due[2] and tonumber(due[2]) - now
local left_behind = #taken > 0 and (more_due or redis.call('LLEN', pending) > 0)
if watching then
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
-- An empty answer is remembered too, so that a straggler cannot claim for a caller who has gone on;
-- a server that is out of memory refuses this write, and nothing is lost by it.
local kept = cmsgpack.pack({again = again, taken = tickets, dead = mourned})
if #taken > 0 then remember(reply, call, kept, keep_ms) else redis.pcall('SET', reply, call .. ':' .. kept, 'PX', keep_ms) end
return result
