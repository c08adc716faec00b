-- claim.lua: leases messages to the caller: expired ones first, then the heads of the lists, tenants in turn.
-- KEYS  pending | processing | leases | deliveries | wakeup | timer_owner | dlq | records: those of dlq | tenant_ring
--       tenant_backlog | weights | delayed | delayed_messages | cancelled | tenant_in_flight
--       journal | meta | reply
-- ARGV  keep_ms | hold_ms: how long an answer with messages is kept | holder: 15 bytes that name the caller's slot
--       lease_us (number): length of a lease, 0 for none
--       most (number): how often a message may be delivered, 0 for any number
--       dlq_limit (number): length of dlq, 0 for any | ttl_us (number): how old a message may be, 0 for any age
--       in_flight_limit (number): how many messages of one tenant may be in flight, 0 for any number
--       tenant_pending | expired | call | count (number): how many to take, 0 to ask only what this call took before
--       slice_us (number): how long the caller will sleep if there is nothing
--       woken: 0 if the caller has not waited, 1 if it has, 2 if it was the timer owner
-- Returns the stored messages alone, if they were never delivered before: one as it is; several packed as MessagePack,
--       which is cheaper than a list, or in a list if they are large;
--       otherwise {again, wait_us, dead, trimming, stored, ticket, stored, ticket, ...}
--       again: 1 if there was more housekeeping than one script may do: call again immediately;
--       and 2 more if a schedule has a tick, which the caller should publish
--       wait_us: when the next lease or delay ends, if the caller is to be awake then, else -1
--       dead: id, count and reason, ... of messages that became dead letters, or were dropped because they are
--       cancelled
--       trimming: what went wrong with it, 'cut N' if N older dead letters were cut off to stay within the limit, or ''
--       ticket: 'attempts:count:origin:failures'; origin is 'queue' for one that waited, 'lease' for an expired one
if count > MAX_MESSAGES then error(TOO_MANY, 0) end
--@include reply
--@include state
--@include clock
--@include plain
local wanted_now = paused and 0 or count -- a repeated call still gets what it took before
local leased, deadline = lease_us > 0, now + lease_us
-- The id of a message and this nonce are a token, which no other claim ever has: it names the caller and the call.
local nonce = holder .. struct.pack('>I5', tonumber(call))

-- If a full server refuses the first write, repeat it behind one that it accepts and that removes nothing: consumers
-- must be able to drain a full queue.
local function store(...)
  if type(redis.pcall('HSET', processing, ...)) == 'number' then return end
  redis.call('ZREM', leases, '')
  redis.call('HSET', processing, ...)
end

local SHORT = 128 -- as `zset-max-listpack-entries` has it

-- Leases plain messages and removes them from the list where they waited. Returns their ids, as the reply keeps them.
local function lease_plain(key, messages)
  local ids = string.sub(messages[1], 2, 17)
  if #messages == 1 then -- most claims: without tables
    store(leased and ids or ids .. nonce, messages[1])
    if leased then redis.call('ZADD', leases, deadline, ids .. nonce) end
    redis.call('RPOP', key)
  else
    local bodies, deadlines, all_ids, all = {}, {}, {}, #messages
    for nth = 1, all do
      local stored = messages[nth]
      local id = string.sub(stored, 2, 17)
      all_ids[nth] = id
      bodies[2 * nth - 1], bodies[2 * nth] = leased and id or id .. nonce, stored
    end
    -- Messages that were claimed together keep their order when they expire. The last comes first, because a short
    -- sorted set is a list that is searched from its beginning: that saves a third of the ZADD.
    for nth = 1, leased and all or 0 do
      deadlines[2 * nth - 1], deadlines[2 * nth] = deadline + all + 1 - nth, all_ids[all + 1 - nth] .. nonce
    end
    -- Redis 7.2 and Valkey make no list if a ZADD has more pairs than a list may have. So the first message is named
    -- again and again: of a hundred, that saves seven tenths of the ZADD.
    if leased and all > SHORT / 2 then
      for at = 2 * all + 1, 2 * SHORT + 1, 2 do
        deadlines[at], deadlines[at + 1] = deadlines[2 * all - 1], deadlines[2 * all]
      end
    end
    store(unpack(bodies))
    if leased then redis.call('ZADD', leases, unpack(deadlines)) end
    redis.call('LTRIM', key, 0, -all - 1)
    ids = table.concat(all_ids)
  end
  return ids
end

-- The fast path, at half the price: nothing is due, and the messages at the head of one list are plain. A caller that
-- was woken looks ahead: the wake-up may be that of a timer owner that left, and then somebody else must be awake soon.
local SOON_US = 1000000
local is_fast_path = wanted_now > 0 and woken < '2' and not answer and not journaled and not cancels
local due_by = woken == '1' and now + SOON_US or now
local due = is_fast_path and leased and redis.call('ZRANGEBYSCORE', leases, '-inf', due_by, 'LIMIT', 0, 2) or {}
if is_fast_path and not due[1] and (leased or redis.call('EXISTS', tenant_ring, delayed, leases) == 0) then
  local messages, all_plain, bytes = read_plain(pending, 0x80, count)
  if all_plain and #messages > 0 then
    -- The chained wake-up: a consumer that was woken and leaves work behind wakes the next one.
    local wakes = woken == '1' and redis.call('LLEN', pending) > #messages and redis.call('LLEN', wakeup) == 0
    local ids = lease_plain(pending, messages)
    if wakes then redis.call('LPUSH', wakeup, '1') end
    redis.call('PSETEX', reply, hold_ms, call .. 'u' .. ids)
    if count == 1 then return messages[1] end
    return bytes < 1000000 and cmsgpack.pack(messages) or messages
  end
end

--@include tenants
--@include turns
-- Nearly the fast path: only tenants wait. The first in the ring gives the head of its list.
if is_fast_path and count == 1 and due[1] == 'r' and not due[2] and not counts and in_flight_limit == 0 then
  local tenant, score = unpack(redis.call('ZRANGE', tenant_ring, 0, 0, 'WITHSCORES'))
  if tenant and tenant ~= '' and tonumber(score) >= 0 and tonumber(score) < REBASE_AT
    and redis.call('EXISTS', pending, expired .. tenant) == 0 then
    local key, stride = tenant_pending .. tenant, stride_of(tenant)
    local messages = read_plain(key, 0x81, 1)
    if messages[1] then
      local others, wakes = redis.call('LLEN', key) > 1, woken == '1' and redis.call('LLEN', wakeup) == 0
      local ids = lease_plain(key, messages)
      if others then place_in_ring(math.floor(score) + stride, tenant) else others = leave_ring(tenant) end
      reduce_backlog(1)
      if wakes and others then redis.call('LPUSH', wakeup, '1') end
      redis.call('PSETEX', reply, hold_ms, call .. 'u' .. ids)
      return messages[1]
    end
  end
end

--@include envelope
--@include ring
-- The same call again: what it took and still owns gets a new lease; the rest is left out.
if answer then
  local before = {again = 0, dead = {}, ids = string.sub(answer, 2), tickets = {}}
  if string.sub(answer, 1, 1) ~= 'u' then before = cmsgpack.unpack(answer) end
  local result, tokens, bodies, deadlines = {before.again, -1, before.dead, before.trimming or ''}, '', {}, {}
  for at = 1, #before.ids, 16 do tokens = tokens .. string.sub(before.ids, at, at + 15) .. nonce end
  --@include owned
  if #ids == 0 then return result end
  for nth, field in ipairs(fields) do bodies[nth] = redis.call('HGET', processing, field) end
  local owned, expired_by_tenant = find_leases(bodies)
  for nth, stored in ipairs(bodies) do
    if stored and owned[nth] then
      deadlines[#deadlines + 1] = deadline + nth
      deadlines[#deadlines + 1] = members[nth]
      result[#result + 1] = stored
      result[#result + 1] = before.tickets[nth] or '1:1:queue:0'
    end
  end
  if leased and #deadlines > 0 then
    check_queues()
    redis.call('ZREM', leases, '') -- first, because a server without memory refuses ZADD; it removes nothing
    redis.call('ZADD', leases, unpack(deadlines))
    for tenant, expired_members in pairs(expired_by_tenant) do remove_expired(tenant, expired_members) end
  end
  return result
end

--@include emptied
local parks = paused_tenants or counts or in_flight_limit > 0
if parks then redis.call('ZCARD', tenant_in_flight) end
--@include select
--@include wake
select_messages(wanted_now)

-- Write what must last before removing anything, many at a time.
local bodies, deadlines, entries, old_leases, old_fields, flights = {}, {}, {}, {}, {}, {}
for place, one in ipairs(taken) do
  local known = one.attempts > 1 or has_entry(one.stored)
  if one.origin == 'queue' or not leased or (known and not has_entry(one.stored)) then
    bodies[#bodies + 1] = leased and one.id or one.id .. nonce
    bodies[#bodies + 1] = known and with_entry(one.stored) or one.stored
  end
  if one.origin == 'lease' and not leased then old_fields[#old_fields + 1] = one.id end
  if known then
    entries[#entries + 1] = one.id
    entries[#entries + 1] = write_entry(one.attempts, one.times, one.failures)
  end
  local tenant = (counts or in_flight_limit > 0) and tenant_of(one.stored) or ''
  if tenant ~= '' then
    flights[#flights + 1] = 0
    flights[#flights + 1] = flight_of(tenant, one.id)
  end
  deadlines[#deadlines + 1] = deadline + place
  deadlines[#deadlines + 1] = one.id .. nonce
  old_leases[#old_leases + 1] = one.member
end
if #bodies > 0 then redis.call('HSET', processing, unpack(bodies)) end
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
if leased and #deadlines > 0 then redis.call('ZADD', leases, unpack(deadlines)) end
if #flights > 0 then
  redis.call('ZADD', tenant_in_flight, unpack(flights))
  if not counts then redis.call('HSET', meta, 'counts', 1) end
end
if #old_leases > 0 then redis.call('ZREM', leases, unpack(old_leases)) end
if #old_fields > 0 then redis.call('HDEL', processing, unpack(old_fields)) end

local trimming = remove_selected()
record_selected(hex(string.sub(holder, 1, 8)))
local next_at, in_ring = set_alarms()

-- Returns the first two of `leases` with their times, and the alarm for ticks, if it is due or there are no leases.
local function read_leases()
  local first = leased and try_call('ZRANGE', leases, 0, 1, 'WITHSCORES') or {}
  if first[1] == 's' then return first, first[2] end
  if first[3] == 's' then return first, first[4] end
  -- Not among them: it may be behind leases that have expired.
  local is_hidden = not leased or first[4] and tonumber(first[4]) <= now
  return first, is_hidden and try_call('ZSCORE', leases, 's')
end
local first, tick_at = read_leases()
-- A schedule has a tick, and this caller is told. If it dies, another one is told a second later.
local has_tick = count > 0 and tick_at and tonumber(tick_at) <= now
if has_tick then
  redis.call('ZADD', leases, now + SOON_US, 's')
  first, tick_at = read_leases()
end
if leased then
  next_at = first[1] == 'r' and first[4] or first[2]
  if first[1] == 'r' and not first[3] then next_at = nil end
elseif tick_at and (not next_at or tonumber(tick_at) < tonumber(next_at)) then
  next_at = tick_at
end
local next_us = next_at and next_at - now

-- Whether a consumer will be awake when the next lease or delay ends; one that waits for a later time would sleep
-- through it. A key that is not ours is left alone.
local function is_timer_owned()
  local found = redis.pcall('GET', timer_owner)
  if type(found) == 'table' then return true end
  local owned_until = tonumber(found)
  return owned_until and owned_until > now and owned_until <= tonumber(next_at)
end

-- The chained wake-up: a consumer that was woken, or would have been, and leaves work behind wakes the next one. It
-- also does so if it does not stay, work will soon be there, and nobody is the timer owner: then it may have the
-- wake-up of one that left.
local again = wanted_now > 0 and #taken == 0 and (has_more() or in_ring > 0) and 1 or 0
if #taken == 0 then forget_emptied() end
local leaves_work = #taken > 0
  and ((next_us and next_us <= 0) or in_ring > 0 or (try_call('LLEN', pending) or 0) > 0)
if woken == '2' then redis.call('UNLINK', timer_owner) end
if next_us and next_us < SOON_US and woken > '0' and (#taken > 0 or slice_us == 0) then
  leaves_work = leaves_work or not is_timer_owned()
end
if leaves_work and silent then redis.pcall('LPUSH', wakeup, '1') end

local wait_us = -1
if #taken == 0 and again == 0 and not has_tick and next_us and next_us > 0 and next_us < slice_us then
  if not is_timer_owned() then
    local became_owner = redis.pcall('SET', timer_owner, next_at, 'PX', math.ceil(next_us / 1000))
    if became_owner.ok then wait_us = next_us end
  end
end

if has_tick then again = again + 2 end
local kept, taken_ids = {again = again, dead = {}, trimming = trimming, tickets = {}}, {}
local result = {again, wait_us, kept.dead, trimming}
for nth, one in ipairs(taken) do
  taken_ids[nth] = one.id
  local origin = one.is_retry and 'queue' or one.origin
  kept.tickets[nth] = string.format('%d:%d:%s:%d', one.attempts, one.times, origin, one.failures)
  result[#result + 1] = one.stored
  result[#result + 1] = kept.tickets[nth]
end
for _, one in ipairs(dead) do
  for _, part in ipairs({one.id, one.times, one.reason}) do kept.dead[#kept.dead + 1] = part end
end
kept.ids = table.concat(taken_ids)
write_journal()
-- An empty answer is kept too, so that a late repetition cannot claim for a caller that has gone on.
redis.call('PSETEX', reply, #taken > 0 and hold_ms or keep_ms, call .. cmsgpack.pack(kept))
return result
