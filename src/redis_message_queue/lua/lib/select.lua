-- lib/select.lua: selects the next messages: expired ones first, then the heads of the lists, tenants in turn.
-- Needs  pending, processing, leases, deliveries, dlq, records, tenant_ring, delayed, delayed_messages, expired
-- Needs  cancelled, meta, cancels, now, leased, uses_tenants, most, ttl_us, dlq_limit, parks, in_flight_limit, counts
-- Needs  largest
-- Makes  taken, dead, try_call, select_messages, found_nothing, has_more, remove_selected, record_selected, set_alarms
-- A cancelled message is among `dead`, with that reason, but becomes no dead letter: it is gone.
-- `select_messages` moves delayed messages that are due, and otherwise only reads: it fills `taken` and `dead`. The
-- script then stores what was taken, and after that calls `remove_selected`.
-- It does MAX_MESSAGES steps of each kind of housekeeping at most.
--@include delivery_state
--@include record
--@include ring
--@include in_flight
--@include bounded

local wanted -- how many messages the script wants
local taken, dead = {}, {} -- what it gets, and what becomes a dead letter instead
local gone, left_leases = {}, {} -- ids of messages that are no more, and members of `leases`
local unfinished = false -- whether there was more housekeeping than one script may do
local steps, from_pending, budget = 0, 0, new_budget(largest)
local turns = {} -- the tenants that had a turn
local marked, dropped = 0, {} -- how many messages are marked as cancelled, and those of them that it has met

-- In a slot that is leaving its node, a key that this script has emptied counts as moved: so an error means empty.
local function try_call(...)
  local found = redis.pcall(...)
  return not (type(found) == 'table' and found.err) and found or nil
end

-- Bytes that are not ours cannot be delivered and must not be lost: they become a dead letter as they are.
local function set_aside(id, bytes)
  dead[#dead + 1] = {id = id, payload = bytes, times = 0, reason = 'foreign'}
end

local function set_lease_aside(member)
  if #member <= 1 then return end -- an alarm
  set_aside('', member)
  left_leases[#left_leases + 1] = member
end

-- Reads messages of a hash in pieces, and calls `each` with the place of every id, its tenant and its message, if they
-- exist. Returns how many were read, and the tenants in the order in which they were met.
local function read_by_tenant(key, ids, each)
  local seen, order, met = 0, {}, {}
  while seen < #ids and not budget.is_spent() do
    local last = seen + budget.next_piece(#ids - seen)
    for place, stored in ipairs(redis.call('HMGET', key, unpack(ids, seen + 1, last))) do
      local nth, tenant = seen + place, nil
      if stored then
        budget.count(stored)
        if is_message(stored) then
          tenant = tenant_of(stored)
        else
          set_aside(ids[nth], stored)
        end
      end
      if tenant and not met[tenant] then
        met[tenant] = true
        order[#order + 1] = tenant
        check_tenant(tenant)
      end
      each(nth, tenant, stored)
    end
    seen = last
  end
  unfinished = unfinished or seen < #ids
  return seen, order
end

-- Delayed messages that are due enter their lists, at the tail.
local function enqueue_due()
  local ids = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, MAX_MESSAGES + 1)
  if #ids == 0 then return end
  unfinished = unfinished or #ids > MAX_MESSAGES
  ids[MAX_MESSAGES + 1] = nil
  local bodies = {}
  local seen, order = read_by_tenant(delayed_messages, ids, function(_, tenant, stored)
    if not tenant then return end
    bodies[tenant] = bodies[tenant] or {}
    table.insert(bodies[tenant], stored)
  end)
  for _, tenant in ipairs(order) do push_pending('LPUSH', tenant, bodies[tenant]) end
  redis.call('HDEL', delayed_messages, unpack(ids, 1, seen))
  redis.call('ZREM', delayed, unpack(ids, 1, seen))
end

-- Where there are tenants, an expired message waits for a turn of its tenant, so that one tenant's crash does not
-- delay another.
local function move_expired()
  local most_found = MAX_MESSAGES + 4 -- with the three alarms
  local found = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most_found)
  local ids, members, scores, by_tenant = {}, {}, {}, {}
  for place = 1, #found, 2 do
    local member = found[place]
    if #ids == MAX_MESSAGES then
      unfinished = unfinished or #member > 1
    elseif #member == 36 then
      ids[#ids + 1] = string.sub(member, 1, 16)
      members[#members + 1] = member
      scores[#scores + 1] = found[place + 1]
    else
      set_lease_aside(member)
    end
  end
  if #ids == 0 then return end
  local seen, order = read_by_tenant(processing, ids, function(nth, tenant)
    if tenant then
      by_tenant[tenant] = by_tenant[tenant] or {}
      table.insert(by_tenant[tenant], scores[nth])
      table.insert(by_tenant[tenant], members[nth])
    else
      gone[#gone + 1] = ids[nth]
    end
  end)
  for _, tenant in ipairs(order) do
    redis.call('ZADD', expired .. tenant, unpack(by_tenant[tenant]))
    join_ring(tenant)
  end
  redis.call('ZREM', leases, unpack(members, 1, seen))
end

-- From here on it only reads: `taken` and `dead` are decided, and written when everything has been read.
local function is_enough()
  return steps >= MAX_MESSAGES or budget.is_spent()
end

local function classify(id, stored, default_count, origin, member, holder)
  local attempts, times, failures, damaged = read_entry(id, stored, default_count)
  local is_cancelled = marked > 0 and redis.call('ZSCORE', cancelled, id)
  if is_cancelled then dropped[#dropped + 1] = id end
  local reason = is_cancelled and 'cancelled' or damaged and 'damaged' or most > 0 and times >= most and 'deliveries'
    or (ttl_us > 0 and time_of(stored) + ttl_us <= now or has_outlived(stored, now)) and 'expired'
  budget.count(stored)
  if reason then
    dead[#dead + 1] = {
      id = id, stored = stored, payload = payload_of(stored), times = times, reason = reason, holder = holder,
    }
    gone[#gone + 1] = id
    left_leases[#left_leases + 1] = member
    return false
  end
  taken[#taken + 1] = {
    id = id, stored = stored, attempts = attempts + 1, times = times + 1, origin = origin, failures = failures,
    member = member,
  }
  return true
end

local function classify_pending(stored)
  if is_message(stored) then return classify(id_of(stored), stored, 0, 'queue') end
  budget.count(stored)
  set_aside('', stored)
  return false
end

-- An expired lease `token`, and its message if there is one. `member` is nil if it is no longer in `leases`.
local function classify_expired(id, stored, token, member)
  if stored and is_message(stored) then
    local is_taken = classify(id, stored, 1, 'lease', member, string.sub(token, 17, 24))
    if is_taken then taken[#taken].is_retry = string.sub(token, 32) == NOBODY end
    return is_taken
  end
  if stored then
    budget.count(stored)
    set_aside(id, stored)
  end
  gone[#gone + 1] = id
  left_leases[#left_leases + 1] = member
  return false
end

-- How many elements to read: as many as are still wanted, then, if some of them could not be delivered, 100.
local function piece_after(seen)
  return budget.next_piece(math.min(seen == 0 and wanted - #taken or 100, MAX_MESSAGES - steps))
end

-- In a queue without tenants, expired messages need no turns.
local function select_expired()
  local seen = 0
  while #taken < wanted and not is_enough() do
    local members = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', seen, piece_after(seen))
    if #members == 0 then return end
    local ids = {}
    for place, member in ipairs(members) do ids[place] = string.sub(member, 1, 16) end
    local bodies = redis.call('HMGET', processing, unpack(ids))
    for place, member in ipairs(members) do
      if #taken == wanted or budget.is_spent() then return end
      seen, steps = seen + 1, steps + 1
      if #member == 36 then
        classify_expired(ids[place], bodies[place], member, member)
      else
        set_lease_aside(member)
      end
    end
  end
end

local function select_pending()
  while #taken < wanted and not is_enough() do
    local piece = piece_after(from_pending)
    local head = redis.call('LRANGE', pending, -from_pending - piece, -from_pending - 1)
    for place = #head, 1, -1 do
      if #taken == wanted or budget.is_spent() then return end
      from_pending, steps = from_pending + 1, steps + 1
      classify_pending(head[place])
    end
    if #head < piece then return end
  end
end

-- The messages of one tenant: expired ones first, then its list. They are read when they are needed.
local function open_turn(turn)
  turn.stride, turn.from_expired, turn.from_pending = stride_of(turn.tenant), 0, 0
  turn.expired = redis.call('ZCARD', expired .. turn.tenant)
  turn.waiting = redis.call('LLEN', pending_of(turn.tenant))
  turn.members, turn.head, turn.done = {}, {}, {}
  local limited = in_flight_limit > 0 and turn.tenant ~= ''
  turn.room = limited and in_flight_limit - count_in_flight(turn.tenant) or 1e15
  turns[#turns + 1] = turn
end

local function left_in(turn)
  return turn.expired - turn.from_expired + turn.waiting - turn.from_pending
end

-- Whether it can have another message: one whose lease ran out is in flight already.
local function has_room(turn)
  return turn.room > 0 or turn.from_expired < turn.expired
end

-- Takes the next message of the tenant that can be delivered. Returns whether there was one.
local function take_turn(turn)
  while left_in(turn) > 0 and has_room(turn) and not is_enough() do
    steps = steps + 1
    if turn.from_expired < turn.expired then
      if #turn.members == 0 then
        turn.members = redis.call('ZRANGE', expired .. turn.tenant, turn.from_expired, turn.from_expired + 99)
      end
      local member = table.remove(turn.members, 1)
      local id = string.sub(member, 1, 16)
      turn.from_expired = turn.from_expired + 1
      table.insert(turn.done, member)
      if classify_expired(id, redis.call('HGET', processing, id), member) then return true end
    else
      if #turn.head == 0 then
        -- One if every tenant has a turn, more if this one has several.
        local piece = budget.next_piece(turn.from_pending == 0 and 1 or math.min(wanted - #taken, 100))
        turn.head = redis.call('LRANGE', pending_of(turn.tenant), -turn.from_pending - piece, -turn.from_pending - 1)
      end
      local stored = table.remove(turn.head)
      turn.from_pending = turn.from_pending + 1
      if classify_pending(stored) then
        turn.room = turn.room - 1
        return true
      end
    end
  end
  return false
end

-- The tenants that wait for a turn, in order, from the place `first_waiting` on; it reads as many as can have a turn.
local waiting_turns, first_waiting, ring_seen = {}, 1, 0
local function read_ring(tenants)
  local ring = redis.call('ZRANGE', tenant_ring, ring_seen, ring_seen + tenants - 1, 'WITHSCORES')
  for place = 1, #ring, 2 do
    if is_parked(ring[place + 1]) then return end
    -- No time is negative, unless somebody wrote it: that tenant would have every turn.
    local time = math.max(math.floor(ring[place + 1]), 0)
    local turn, at = {tenant = ring[place], time = time}, #waiting_turns + 1
    -- Before those who had a turn and reach the same time only now.
    while at > first_waiting and waiting_turns[at - 1].stride and waiting_turns[at - 1].time >= turn.time do
      at = at - 1
    end
    table.insert(waiting_turns, at, turn)
    ring_seen = ring_seen + 1
  end
end

local function select_in_turns()
  if parks then
    -- Behind those that are parked, nobody would ever look for a damaged score.
    local last = redis.call('ZREVRANGEBYSCORE', tenant_ring, '+inf', 2 * PARKED, 'LIMIT', 0, 1)[1]
    if last then join_ring(last) end
  end
  rebase_ring()
  if redis.call('LLEN', pending) > 0 then join_ring('') end
  read_ring(wanted)
  while #taken < wanted and waiting_turns[first_waiting] and not is_enough() do
    local turn = waiting_turns[first_waiting]
    first_waiting = first_waiting + 1
    if not turn.stride then open_turn(turn) end
    if not take_turn(turn) then
      steps = steps + 1
      read_ring(1) -- it had nothing to deliver: the next tenant has its turn
    else
      turn.time = turn.time + turn.stride
      local at = #waiting_turns + 1
      while at > first_waiting and waiting_turns[at - 1].time > turn.time do at = at - 1 end
      if left_in(turn) > 0 and has_room(turn) then table.insert(waiting_turns, at, turn) end
    end
  end
end

-- At most `count` messages that can be delivered.
local function select_messages(count)
  wanted = count
  check_queues()
  check_tenant('')
  -- One by one: `check_types` makes tables, and every claim with a journal or delays comes here.
  redis.call('HLEN', processing)
  redis.call('HLEN', deliveries)
  redis.call('ZCARD', delayed)
  redis.call('HLEN', delayed_messages)
  redis.call('LLEN', dlq)
  redis.call('LLEN', records)
  if cancels then marked = redis.call('ZCARD', cancelled) end
  -- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
  redis.call('ZREM', leases, '')
  if wanted == 0 then return end
  enqueue_due()
  -- Without a ring, expired messages may still be of several tenants, and so may due ones behind a thousand others. To
  -- read all of them would be too much, but the queue remembers whether it ever had a tenant.
  local has_tenants = uses_tenants or redis.call('EXISTS', tenant_ring) == 1
  if leased and has_tenants then
    move_expired()
  elseif leased then
    select_expired()
  end
  -- Behind a thousand others there may be a tenant that has waited longest: move all of them first.
  if has_tenants and unfinished then return end
  if has_tenants and redis.call('EXISTS', tenant_ring) == 1 then select_in_turns() else select_pending() end
end

local function found_nothing()
  return #taken + #dead + #gone + #left_leases == 0
end

-- Whether there is more housekeeping than one script may do.
local function has_more()
  return unfinished or is_enough()
end

-- Pushes the dead to the dead letters, and removes what was selected from where it waited. Returns what trimming did:
-- its error, 'cut N' if N older dead letters were cut off to stay within the limit, or ''.
local function remove_selected()
  local trimming = ''
  if #dead > 0 then
    local letters, notes = {}, {}
    for _, one in ipairs(dead) do
      if one.reason ~= 'cancelled' then
        letters[#letters + 1] = one.payload
        local note = {reason = one.reason, id = one.id ~= '' and hex(one.id) or nil}
        if one.holder then note.by = hex(one.holder) end
        notes[#notes + 1] = to_record(one.stored, one.payload, one.times, note)
      end
    end
    if #letters > 0 then
      local trim_error, cut = push_terminal(dlq, records, letters, notes, dlq_limit)
      trimming = cut > 0 and 'cut ' .. cut or trim_error
    end
  end
  if from_pending > 0 then redis.call('RPOP', pending, from_pending) end
  for _, turn in ipairs(turns) do
    if turn.from_pending > 0 then redis.call('RPOP', pending_of(turn.tenant), turn.from_pending) end
    if turn.tenant ~= '' then reduce_backlog(turn.from_pending) end
    if #turn.done > 0 then redis.call('ZREM', expired .. turn.tenant, unpack(turn.done)) end
    if left_in(turn) == 0 then
      leave_ring(turn.tenant)
    elseif not has_room(turn) then
      redis.call('ZADD', tenant_ring, AT_LIMIT + turn.time, turn.tenant)
    end
  end
  -- In their order, so that tenants of the same time keep it.
  for at = first_waiting, #waiting_turns do
    local turn = waiting_turns[at]
    if turn.stride then place_in_ring(turn.time, turn.tenant) end
  end
  for _, one in ipairs(counts and dead or {}) do
    if one.stored then leave_flight(tenant_of(one.stored), {one.id}) end
  end
  if #gone > 0 then
    redis.call('HDEL', processing, unpack(gone))
    redis.call('HDEL', deliveries, unpack(gone))
  end
  if #left_leases > 0 then redis.call('ZREM', leases, unpack(left_leases)) end
  -- A mark goes with its message; with the last one, or if all have expired, claims are quick again.
  if #dropped > 0 then redis.call('ZREM', cancelled, unpack(dropped)) end
  if cancels and #dropped >= marked then redis.call('HDEL', meta, 'cancels') end
  return trimming
end

-- `by` is who claims them: the host and the process of the consumer.
local function record_selected(by)
  for _, one in ipairs(taken) do
    local event = (one.origin == 'queue' or one.is_retry) and 'claimed' or 'reclaimed'
    record_event(event, one.id, tenant_of(one.stored), 'count', one.times, 'by', by)
  end
  for _, one in ipairs(dead) do
    local tenant = one.stored and tenant_of(one.stored) or ''
    local event = (one.reason == 'expired' or one.reason == 'cancelled') and one.reason or 'dead'
    record_event(event, one.id, tenant, 'reason', one.reason, 'count', one.times)
  end
end

-- After `remove_selected`: sets when the next claim must look beyond the head of `pending`. An alarm may be early, so
-- a full server may refuse it. Returns when the next delay ends, if there is one, and how many tenants are in the ring.
local function set_alarms()
  local next_due = (try_call('ZRANGE', delayed, 0, 0, 'WITHSCORES') or {})[2]
  if next_due then try_call('ZADD', leases, next_due, 'd') else try_call('ZREM', leases, 'd') end
  local in_ring, last = try_call('ZCARD', tenant_ring) or 0, taken[#taken]
  if parks then -- none, one, or more than one that is not parked
    in_ring = #(try_call('ZRANGEBYSCORE', tenant_ring, '-inf', '(' .. PARKED, 'LIMIT', 0, 2) or {})
  end
  local had_turn = last and tenant_of(last.stored) == ''
  local is_alone = in_ring == 1 and had_turn and redis.call('ZSCORE', tenant_ring, '')
  if is_alone and (try_call('EXISTS', expired) or 0) == 0 then
    -- Messages without a tenant need no turn if they are alone. But first they get the turn they wait for, and nobody
    -- has one after it: or a tenant that comes and goes between two claims would be served before them again.
    leave_ring('')
    in_ring = 0
  end
  return next_due, in_ring
end
