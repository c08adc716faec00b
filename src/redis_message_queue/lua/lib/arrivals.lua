-- lib/arrivals.lua: messages enter their lines, or wait for their time: all of them or none.
-- Given what lib/lines.lua and lib/later.lua want, `deliveries`, `now`; and the rules `limit`, `tenant_limit`, `drops`,
-- and where messages are dropped `longest`: the key that remembers whose line was the longest.
-- Needs lib/journal.lua; `arrival` is what the journal calls it when a message enters.
-- First `plan`, which only looks, then `carry_out`: between the two a script can look at other things.

local LOOKS = 100 -- at so many lines a publish looks for the longest: 0.1 ms
local REMEMBERED_MS = 86400000

-- The lines that can give way, {tenant, length, can_leave}: those of the arrivals first, then the one without a tenant,
-- then those in the ring. Of more than LOOKS it is a sample and the one that was the longest before; there are enough
-- of them that `over` messages can leave.
local function lines_that_give_way(todo, before, over)
  local found, seen = {}, {}
  local function add(tenant, length, entering, leaving)
    if seen[tenant] then return end
    seen[tenant] = true
    found[#found + 1] = {tenant = tenant, length = length + entering - leaving, can_leave = length - leaving}
  end
  for _, tenant in ipairs(todo.order) do
    add(tenant, before[tenant], #todo.lines[tenant], todo.leaving[tenant])
  end
  add('', redis.call('LLEN', pending), 0, 0)
  local ring
  if todo.in_turns <= LOOKS then
    ring = redis.call('ZRANGE', tenants, 0, -1)
  else
    ring = redis.call('ZRANDMEMBER', tenants, math.max(LOOKS, math.min(over, 1000)))
    if todo.was_longest then add(todo.was_longest, redis.call('LLEN', line_of(todo.was_longest)), 0, 0) end
  end
  for _, tenant in ipairs(ring) do
    if not seen[tenant] then add(tenant, redis.call('LLEN', line_of(tenant)), 0, 0) end
  end
  return found
end

-- The longest of them, of equal ones the first; and how long the next one is.
local function longest_of(lines)
  local longest, second = nil, 0
  for _, one in ipairs(lines) do
    if one.can_leave > 0 then
      if not longest or one.length > longest.length then
        longest, second = one, longest and longest.length or 0
      else
        second = math.max(second, one.length)
      end
    end
  end
  return longest, second
end

-- The oldest of the longest line make room, message by message: who publishes much pays for it, and nobody is locked
-- out. Returns how many are still too many, and may still leave.
local function make_room(todo, before, over, most)
  local lines = lines_that_give_way(todo, before, over)
  while over > 0 and most > 0 do
    local longest, second = longest_of(lines)
    if not longest then break end
    if todo.in_turns > LOOKS and longest.tenant ~= '' then todo.longest = longest.tenant end
    local count = math.min(over, most, longest.can_leave, math.max(longest.length - second, 1))
    longest.length, longest.can_leave = longest.length - count, longest.can_leave - count
    over, most = over - count, most - count
    todo.leaving[longest.tenant] = (todo.leaving[longest.tenant] or 0) + count
  end
  for _, one in ipairs(lines) do
    if not before[one.tenant] and todo.leaving[one.tenant] then
      table.insert(todo.neighbours, one.tenant)
      -- Its last message leaves, and with it the tenant its place in the ring, unless others of it came back.
      local is_empty = one.length == 0 and redis.call('ZCARD', returned .. one.tenant) == 0
      todo.emptied[one.tenant] = is_empty or nil
    end
  end
  return over, most
end

-- An arrival is {id, flags, body, due, marker}: what follows the time stamp, when it is due ('' for at once,
-- microseconds of the server's clock, or '+' and microseconds from now), and the key that suppresses a repetition.
-- Returns marks for each ('1' enters, '0' is a duplicate), and what there is to do, or nil where there is no room.
local function plan(arrivals)
  local stamp = struct.pack('>I8', now)
  local marks, seen = {}, {}
  local todo = {lines = {}, order = {}, due_times = {}, bodies = {}, markers = {}, leaving = {}, duplicates = {}}
  todo.neighbours, todo.emptied = {}, {} -- others whose lines give way, and whose lines are empty then
  for place, one in ipairs(arrivals) do
    local marker = one.marker
    local first = marker and (seen[marker] or redis.call('GET', marker))
    if first then
      marks[place], one.of = '0', #first == 16 and hex(first) or ''
      table.insert(todo.duplicates, one)
    else
      marks[place] = '1'
      if marker then
        seen[marker] = one.id
        table.insert(todo.markers, {marker, one.id})
      end
      local stored = one.flags .. one.id .. stamp .. one.body
      local due = string.sub(one.due, 1, 1) == '+' and now + tonumber(one.due) or tonumber(one.due)
      if due and due > now then
        local nth = #todo.bodies
        todo.due_times[nth + 1], todo.due_times[nth + 2] = due, one.id
        todo.bodies[nth + 1], todo.bodies[nth + 2] = one.id, stored
      else
        local tenant = tenant_of(stored)
        if not todo.lines[tenant] then
          todo.lines[tenant] = {}
          table.insert(todo.order, tenant)
        end
        table.insert(todo.lines[tenant], stored)
      end
    end
  end

  -- How many must leave which line, at most 1,000 in all so that nobody blocks the server: first what a tenant's own
  -- limit wants, from its own line, then the rest from the longest lines.
  local entering, over, most, before = #todo.bodies / 2, 0, 1000, {}
  for _, tenant in ipairs(todo.order) do
    local count, bound = #todo.lines[tenant], tenant ~= '' and tenant_limit or 0
    before[tenant] = redis.call('LLEN', line_of(tenant))
    local excess = bound > 0 and math.max(before[tenant] + count - bound, 0) or 0
    if excess > 0 and (not drops or count > bound) then return marks, nil end
    todo.leaving[tenant] = math.min(excess, most)
    most, entering, over = most - todo.leaving[tenant], entering + count, over - todo.leaving[tenant]
  end
  check_lines()
  redis.call('HLEN', deliveries)
  redis.call('ZCARD', delayed)
  redis.call('HLEN', later)
  if limit > 0 and entering > 0 then
    local waiting = redis.call('LLEN', pending) + (redis.call('GET', size) or 0) + redis.call('ZCARD', delayed)
    over = over + waiting + entering - limit
    if over > 0 and not drops then return marks, nil end
    if drops then
      todo.was_longest, todo.in_turns = redis.call('GET', longest) or nil, redis.call('ZCARD', tenants)
      if over > 0 then over, most = make_room(todo, before, over, most) end
      for _, tenant in ipairs(todo.in_turns > LOOKS and todo.order or {}) do
        -- Whoever has more than half of all messages has the longest line.
        local count = before[tenant] + #todo.lines[tenant]
        if tenant ~= '' and 2 * count > waiting + entering then todo.longest = tenant end
      end
    end
  end
  if over > 0 and most > 0 then return marks, nil end
  return marks, todo
end

local function tell_arrival(stored)
  if not journaled then return end
  local details, replayed = {}, extras_of(stored).replay_of
  if journaled == '1' then details = {'payload', payload_of(stored)} end
  if type(replayed) == 'string' then
    table.insert(details, 'replay_of')
    table.insert(details, replayed)
  end
  tell(arrival, id_of(stored), tenant_of(stored), unpack(details))
end

local function tell_arrivals(todo)
  for _, tenant in ipairs(todo.order) do
    for _, stored in ipairs(todo.lines[tenant]) do tell_arrival(stored) end
  end
  for place = 1, #todo.bodies, 2 do
    local stored = todo.bodies[place + 1]
    tell_arrival(stored)
    tell('delayed', todo.bodies[place], tenant_of(stored), 'due', string.format('%.0f', todo.due_times[place]))
  end
  for _, one in ipairs(todo.duplicates) do
    tell('duplicate', one.id, tenant_of(one.flags .. one.id .. struct.pack('>I8', now) .. one.body), 'of', one.of)
  end
end

-- Returns whether somebody should be woken, and the ids of the messages that had to leave.
local function carry_out(todo, window_ms)
  local work, dropped, known = false, {}, {}
  if journaled then tell_arrivals(todo) end
  for _, tenant in ipairs(todo.order) do
    work = enter_line('LPUSH', tenant, todo.lines[tenant]) or work
  end
  if #todo.bodies > 0 then work = put_off(todo.due_times, todo.bodies) or work end
  for _, one in ipairs(todo.markers) do redis.call('PSETEX', one[1], window_ms, one[2]) end
  local function leave(tenant)
    local count = todo.leaving[tenant]
    local gone = count > 0 and redis.call('RPOP', line_of(tenant), count) or {}
    for _, stored in ipairs(gone) do
      if is_message(stored) then
        table.insert(dropped, id_of(stored))
        tell('dropped', id_of(stored), tenant)
      end
      if is_message(stored) and has_entry(stored) then table.insert(known, id_of(stored)) end
    end
    if tenant ~= '' then shrink(#gone) end
    if todo.emptied[tenant] then leave_ring(tenant) end
  end
  for _, tenant in ipairs(todo.order) do leave(tenant) end
  for _, tenant in ipairs(todo.neighbours) do leave(tenant) end
  if todo.longest and todo.longest ~= todo.was_longest then
    redis.call('PSETEX', longest, REMEMBERED_MS, todo.longest)
  end
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  return work, table.concat(dropped)
end
