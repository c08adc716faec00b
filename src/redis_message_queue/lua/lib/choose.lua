-- lib/choose.lua: which messages are next: what came back first, then the heads of the lines, tenants in turn.
-- Given what lib/lines.lua wants, `processing`, `deliveries`, `dlq`, `records`, `delayed`, `later`, `now`; and `count`,
-- how many are wanted, `most`, `ttl_us`, `leased`, `dlq_limit`. Needs envelope, ledger, record, lines, journal and
-- bounded.
-- It brings in what is due, and otherwise only looks: `taken` and `dead` are decided, for the script to write the one
-- and then, with `take_away`, the other.
local STEPS = 1000 -- of each kind of housekeeping in one script: 200,000 dead letters at once took 1.2 s

check_lines()
check_line('')
redis.call('HLEN', processing)
redis.call('HLEN', deliveries)
redis.call('ZCARD', delayed)
redis.call('HLEN', later)
redis.call('LLEN', dlq)
redis.call('LLEN', records)
-- A first write that a server without memory accepts, for a full queue must be drained. It removes nothing: a key that
-- it emptied would count as moved in a slot that is leaving.
redis.call('ZREM', leases, '')
local unfinished = false -- whether there was more to tidy up than one script may do

-- In a slot that is leaving its node, a key that this script has emptied counts as moved: so an error means empty.
local function still(...)
  local found = redis.pcall(...)
  return not (type(found) == 'table' and found.err) and found or nil
end

local gone, left_leases = {}, {} -- ids of messages that are no more, and members of `leases`
local taken, dead = {}, {}

-- What is not ours cannot be delivered and must not be lost: it becomes a dead letter as it is.
local function set_aside(id, bytes)
  dead[#dead + 1] = {id = id, payload = bytes, times = 0, reason = 'foreign'}
end

-- Messages of a hash by their tenants, read in pieces: `bodies` by tenant, in the `order` in which these are met.
-- `each` is called with the place of every id and its message, or nil where there is none. Returns how many were read.
local function read_by_tenant(key, ids, each)
  local seen, order, met = 0, {}, {}
  while seen < #ids and not is_much() do
    local last = seen + next_piece(#ids - seen)
    for place, stored in ipairs(redis.call('HMGET', key, unpack(ids, seen + 1, last))) do
      local nth, tenant = seen + place
      if stored then
        count_bytes(stored)
        if is_message(stored) then
          tenant = tenant_of(stored)
        else
          set_aside(ids[nth], stored)
        end
      end
      if tenant and not met[tenant] then
        met[tenant] = true
        order[#order + 1] = tenant
        check_line(tenant)
      end
      each(nth, tenant, stored)
    end
    seen = last
  end
  unfinished = unfinished or seen < #ids
  return seen, order
end

-- What has waited for its time enters its line, at the tail.
local function bring_in_what_is_due()
  local ids = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, STEPS + 1)
  if #ids == 0 then return end
  unfinished = unfinished or #ids > STEPS
  ids[STEPS + 1] = nil
  local bodies = {}
  local seen, order = read_by_tenant(later, ids, function(_, tenant, stored)
    if not tenant then return end
    bodies[tenant] = bodies[tenant] or {}
    table.insert(bodies[tenant], stored)
  end)
  for _, tenant in ipairs(order) do enter_line('LPUSH', tenant, bodies[tenant]) end
  redis.call('HDEL', later, unpack(ids, 1, seen))
  redis.call('ZREM', delayed, unpack(ids, 1, seen))
end

-- Where tenants take turns, a lease that ran out goes to its own tenant, so that one's crash does not delay another.
local function return_what_ran_out()
  local found = redis.call('ZRANGEBYSCORE', leases, '(0', now, 'WITHSCORES', 'LIMIT', 0, STEPS + 1)
  local ids, members, scores, came_back = {}, {}, {}, {}
  unfinished = unfinished or #found > 2 * STEPS
  for place = 1, math.min(#found, 2 * STEPS), 2 do
    local member = found[place]
    if #member == 36 then
      ids[#ids + 1] = string.sub(member, 1, 16)
      members[#members + 1] = member
      scores[#scores + 1] = found[place + 1]
    elseif #member > 1 then
      set_aside('', member)
      left_leases[#left_leases + 1] = member
    end
  end
  if #ids == 0 then return end
  local seen, order = read_by_tenant(processing, ids, function(nth, tenant)
    if tenant then
      came_back[tenant] = came_back[tenant] or {}
      table.insert(came_back[tenant], scores[nth])
      table.insert(came_back[tenant], members[nth])
    else
      gone[#gone + 1] = ids[nth]
    end
  end)
  for _, tenant in ipairs(order) do
    redis.call('ZADD', returned .. tenant, unpack(came_back[tenant]))
    join_ring(tenant)
  end
  redis.call('ZREM', leases, unpack(members, 1, seen))
end

-- From here on first only look: `taken` and `dead` are decided, and written when all of it has been read.
local steps, from_line = 0, 0
local turns = {} -- the tenants whose turn it was

local function is_enough()
  return steps >= STEPS or is_much()
end

local function weigh(id, stored, usual, origin, member)
  local attempts, times, failures, damaged = read_entry(deliveries, id, stored, usual)
  local reason = damaged and 'damaged' or most > 0 and times >= most and 'deliveries'
    or ttl_us > 0 and time_of(stored) + ttl_us <= now and 'expired'
  count_bytes(stored)
  if reason then
    dead[#dead + 1] = {id = id, stored = stored, payload = payload_of(stored), times = times, reason = reason}
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

local function weigh_from_line(stored)
  if is_message(stored) then return weigh(id_of(stored), stored, 0, 'line') end
  count_bytes(stored)
  set_aside('', stored)
  return false
end

-- A lease that ran out, and its message if that is there. `member` is nil if it lies in `leases` no more.
local function weigh_from_lease(id, stored, member)
  if stored and is_message(stored) then return weigh(id, stored, 1, 'lease', member) end
  if stored then
    count_bytes(stored)
    set_aside(id, stored)
  end
  gone[#gone + 1] = id
  left_leases[#left_leases + 1] = member
  return false
end

local function look_at_leases()
  local seen = 0
  while #taken < count and not is_enough() do
    local wanted = next_piece(math.min(seen == 0 and count - #taken or 100, STEPS - steps))
    local members = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', seen, wanted)
    if #members == 0 then return end
    local ids = {}
    for place, member in ipairs(members) do ids[place] = string.sub(member, 1, 16) end
    local bodies = redis.call('HMGET', processing, unpack(ids))
    for place, member in ipairs(members) do
      if #taken == count or is_much() then return end
      seen, steps = seen + 1, steps + 1
      if #member == 36 then
        weigh_from_lease(ids[place], bodies[place], member)
      elseif #member > 1 then -- not an alarm either
        set_aside('', member)
        left_leases[#left_leases + 1] = member
      end
    end
  end
end

local function look_at_line()
  while #taken < count and not is_enough() do
    local wanted = next_piece(math.min(from_line == 0 and count - #taken or 100, STEPS - steps))
    local head = redis.call('LRANGE', pending, -from_line - wanted, -from_line - 1)
    for place = #head, 1, -1 do
      if #taken == count or is_much() then return end
      from_line, steps = from_line + 1, steps + 1
      weigh_from_line(head[place])
    end
    if #head < wanted then return end
  end
end

-- One tenant's messages: those that came back first, then its line. They are read as they are wanted.
local function open_turn(turn)
  turn.stride, turn.from_returned, turn.from_line = stride_of(turn.tenant), 0, 0
  turn.came_back = redis.call('ZCARD', returned .. turn.tenant)
  turn.waiting = redis.call('LLEN', line_of(turn.tenant))
  turn.ids, turn.head, turn.done = {}, {}, {}
  turns[#turns + 1] = turn
end

local function left_in(turn)
  return turn.came_back - turn.from_returned + turn.waiting - turn.from_line
end

-- The tenant's next message that can be delivered; whether there was one.
local function take_turn(turn)
  while left_in(turn) > 0 and not is_enough() do
    steps = steps + 1
    if turn.from_returned < turn.came_back then
      if #turn.ids == 0 then
        turn.ids = redis.call('ZRANGE', returned .. turn.tenant, turn.from_returned, turn.from_returned + 99)
      end
      local member = table.remove(turn.ids, 1)
      local id = string.sub(member, 1, 16)
      turn.from_returned = turn.from_returned + 1
      table.insert(turn.done, member)
      if weigh_from_lease(id, redis.call('HGET', processing, id)) then return true end
    else
      if #turn.head == 0 then
        -- One if everybody has a turn, more if it has several.
        local chunk = next_piece(turn.from_line == 0 and 1 or math.min(count - #taken, 100))
        turn.head = redis.call('LRANGE', line_of(turn.tenant), -turn.from_line - chunk, -turn.from_line - 1)
      end
      local stored = table.remove(turn.head)
      turn.from_line = turn.from_line + 1
      if weigh_from_line(stored) then return true end
    end
  end
  return false
end

-- Those who wait for a turn, in its order; as many are read as can have one.
local queue, first, seen = {}, 1, 0
local function read_ring(wanted)
  local ring = redis.call('ZRANGE', tenants, seen, seen + wanted - 1, 'WITHSCORES')
  for place = 1, #ring, 2 do
    local turn, at = {tenant = ring[place], time = math.floor(ring[place + 1])}, #queue + 1
    -- Before those who have had a turn and come to the same time only now.
    while at > first and queue[at - 1].stride and queue[at - 1].time >= turn.time do at = at - 1 end
    table.insert(queue, at, turn)
    seen = seen + 1
  end
end

local function look_at_ring()
  start_time_anew()
  if redis.call('LLEN', pending) > 0 then join_ring('') end
  read_ring(count)
  while #taken < count and queue[first] and not is_enough() do
    local turn = queue[first]
    first = first + 1
    if not turn.stride then open_turn(turn) end
    if not take_turn(turn) then
      steps = steps + 1
      read_ring(1) -- it had nothing to deliver: the turn is the next one's
    else
      turn.time = turn.time + turn.stride
      local at = #queue + 1
      while at > first and queue[at - 1].time > turn.time do at = at - 1 end
      if left_in(turn) > 0 then table.insert(queue, at, turn) end
    end
  end
end

if count > 0 then
  bring_in_what_is_due()
  local in_turns = redis.call('EXISTS', tenants) == 1
  if in_turns then
    if leased then return_what_ran_out() end
    -- What lies behind a thousand others may be the turn of somebody who has waited longest: first all of it.
    if not unfinished then look_at_ring() end
  else
    if leased then look_at_leases() end
    look_at_line()
  end
end

-- What cannot be delivered becomes dead letters, and what was chosen leaves the place where it was. Returns what went
-- wrong with trimming.
local function take_away()
  local notes = ''
  if #dead > 0 then
    local letters, notices = {}, {}
    for place, one in ipairs(dead) do
      letters[place] = one.payload
      local note = {reason = one.reason, id = one.id ~= '' and hex(one.id) or nil}
      notices[place] = record(one.stored, one.payload, one.times, now, note)
    end
    notes = keep(dlq, records, letters, notices, dlq_limit)
  end
  if from_line > 0 then redis.call('RPOP', pending, from_line) end
  for _, turn in ipairs(turns) do
    if turn.from_line > 0 then redis.call('RPOP', line_of(turn.tenant), turn.from_line) end
    if turn.tenant ~= '' then shrink(turn.from_line) end
    if #turn.done > 0 then redis.call('ZREM', returned .. turn.tenant, unpack(turn.done)) end
    if left_in(turn) == 0 then leave_ring(turn.tenant) end
  end
  -- In the order in which they stand there now, so that those of one time keep it.
  for at = first, #queue do
    if queue[at].stride then stand_at(queue[at].time, queue[at].tenant) end
  end
  if #gone > 0 then
    redis.call('HDEL', processing, unpack(gone))
    redis.call('HDEL', deliveries, unpack(gone))
  end
  if #left_leases > 0 then redis.call('ZREM', leases, unpack(left_leases)) end
  return notes
end

local function tell_choice()
  for _, one in ipairs(taken) do
    tell(one.origin == 'line' and 'claimed' or 'reclaimed', one.id, tenant_of(one.stored), 'count', one.times)
  end
  for _, one in ipairs(dead) do
    local event = one.reason == 'expired' and 'expired' or 'dead'
    tell(event, one.id, one.stored and tenant_of(one.stored) or '', 'reason', one.reason, 'count', one.times)
  end
end
