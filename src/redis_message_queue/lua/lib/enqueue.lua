-- lib/enqueue.lua: stores new messages, to wait in their lists or to be delayed: all of them or none.
-- Needs  pending, deliveries, tenant_ring, tenant_backlog, delayed, delayed_messages, longest, expired
-- Needs  now, limit, tenant_limit, drops, stored_event, journaled, largest, remember_largest
-- Makes  stamp, to_stored, read_messages, plan_messages, store_messages
-- First `plan_messages`, which only reads, and notes what the journal will say, then `store_messages`: between the two
-- a script can read other things.
-- Above a limit the queue refuses, or drops its oldest messages if `drops`; `longest` remembers which tenant waits
-- with the most messages, and `stored_event` is what the journal calls it when a message enters.
--@include ring
--@include bounded
--@include delayed
--@include journal
local SAMPLE = 100 -- a publish compares so many tenants to find the longest list: 0.1 ms
local MOST_SAMPLED = 1000 -- it compares so many at most
local REMEMBERED_MS = 86400000

local stamp = struct.pack('>I8', now)

-- A new message as it is stored. `body` is its flags, and what follows the time stamp.
local function to_stored(id, body)
  return string.sub(body, 1, 1) .. id .. stamp .. string.sub(body, 2)
end

-- Takes (due, marker, body) for each message, from the place `first` on; `marker` is a place among `markers`, 0 for
-- none. Returns what `plan_messages` takes: the messages, whose ids begin with `base`, their markers and due times.
local function read_messages(arguments, first, count, base, markers)
  local messages, markers_of, due_times = {}, {}, {}
  for place = 1, count do
    local due, marker, body = unpack(arguments, first + 3 * place - 3, first + 3 * place - 1)
    messages[place] = to_stored(base .. struct.pack('>I2', place), body)
    markers_of[place], due_times[place] = markers[tonumber(marker)], due
  end
  return messages, markers_of, due_times
end

-- The lists that can give way, {tenant, length, can_leave}: those of the new messages, then the one without a tenant,
-- then those in the ring. Of more than SAMPLE tenants it is the tenant that had the longest list before, and a sample,
-- large enough that `over` messages can leave. If the longest of them is shorter than the average of the `waiting`
-- messages, there is a longer one: it looks at many more, so that a short list does not give way for it.
local function droppable_queues(plan, before, over, waiting)
  local found, seen, longest_found = {}, {}, 0
  local function add(tenant, length, entering, leaving)
    if seen[tenant] then return end
    seen[tenant] = true
    if length > leaving then longest_found = math.max(longest_found, length + entering - leaving) end
    found[#found + 1] = {tenant = tenant, length = length + entering - leaving, can_leave = length - leaving}
  end
  for _, tenant in ipairs(plan.order) do
    add(tenant, before[tenant], #plan.messages[tenant], plan.leaving[tenant])
  end
  add('', redis.call('LLEN', pending), 0, 0)
  local function add_all(tenants)
    for _, tenant in ipairs(tenants) do
      if not seen[tenant] then add(tenant, redis.call('LLEN', pending_of(tenant)), 0, 0) end
    end
  end
  if plan.in_ring <= SAMPLE then
    add_all(redis.call('ZRANGE', tenant_ring, 0, -1))
    return found
  end
  add_all({plan.was_longest})
  add_all(redis.call('ZRANDMEMBER', tenant_ring, math.max(SAMPLE, math.min(over, MOST_SAMPLED))))
  local is_short = longest_found * plan.in_ring < waiting
  if is_short then add_all(redis.call('ZRANDMEMBER', tenant_ring, MOST_SAMPLED)) end -- all, if there are no more
  return found
end

-- The longest of them, the first of equal ones; and the length of the next one.
local function longest_of(queues)
  local longest_one, second = nil, 0
  for _, one in ipairs(queues) do
    if one.can_leave > 0 then
      if not longest_one or one.length > longest_one.length then
        longest_one, second = one, longest_one and longest_one.length or 0
      else
        second = math.max(second, one.length)
      end
    end
  end
  return longest_one, second
end

-- The oldest messages of the longest list leave, one by one: a tenant that publishes much pays for it, and nobody is
-- locked out. Returns how many are still too many, and how many may still leave.
local function make_room(plan, before, over, may_leave, waiting)
  local queues = droppable_queues(plan, before, over, waiting)
  while over > 0 and may_leave > 0 do
    local one, second = longest_of(queues)
    if not one then break end
    if plan.in_ring > SAMPLE and one.tenant ~= '' then plan.longest = one.tenant end
    local leaving = math.min(over, may_leave, one.can_leave, math.max(one.length - second, 1))
    one.length, one.can_leave = one.length - leaving, one.can_leave - leaving
    over, may_leave = over - leaving, may_leave - leaving
    plan.leaving[one.tenant] = (plan.leaving[one.tenant] or 0) + leaving
  end
  for _, one in ipairs(queues) do
    if not before[one.tenant] and plan.leaving[one.tenant] then
      table.insert(plan.neighbours, one.tenant)
      -- With its last message the tenant leaves the ring, unless it has expired messages.
      local is_empty = one.length == 0 and redis.call('ZCARD', expired .. one.tenant) == 0
      plan.emptied[one.tenant] = is_empty or nil
    end
  end
  return over, may_leave
end

-- What the journal says of a new message beside its id and tenant: pairs of name and value.
local function details_of(stored, payload)
  local text = extras_text(stored)
  if journaled == '1' then
    payload = payload or payload_of(stored)
    if text == '' then return 'payload', payload end
    -- A replayed message without headers: decoding this would be a sixth of what it costs.
    local original = string.match(text, '^{"replay_of":"(%x+)"}$')
    if original then return 'payload', payload, 'replay_of', original end
  end
  local details, extras = {}, extras_of(stored)
  if journaled == '1' then
    details = {'payload', payload}
    local is_json, headers = false, nil
    if type(extras.headers) == 'table' then is_json, headers = pcall(cjson.encode, extras.headers) end
    if is_json then
      table.insert(details, 'headers')
      table.insert(details, headers)
    end
  end
  if type(extras.replay_of) == 'string' then
    table.insert(details, 'replay_of')
    table.insert(details, extras.replay_of)
  end
  return unpack(details)
end

-- Takes messages as they are stored. By their place: the marker of those that have one, a key that suppresses
-- duplicates; their due time, nil or '' for now, microseconds of the server's clock, or '+' and microseconds from now;
-- and their payload, if the script has it apart: to cut it out of a message is another copy of it for the journal.
-- Returns a mark for each ('1' enters, '0' is a duplicate), and the plan, or nil if there is no room.
local function plan_messages(messages, markers, due_times, payloads)
  local marks, tenants = {}, {}
  local plan = {messages = tenants, order = {}, due_times = {}, bodies = {}, markers = {}, leaving = {}, largest = 0}
  plan.neighbours, plan.emptied = {}, {} -- other tenants that give way, and those with no message left then
  for place, stored in ipairs(messages) do
    local id, tenant, marker, due = id_of(stored), tenant_of(stored), markers[place], due_times[place]
    local first = marker and (plan.markers[marker] or redis.call('GET', marker))
    if first then
      marks[place] = '0'
      -- A repeated import finds the marks of its own messages: nothing has happened to them.
      if first ~= id then record_event('duplicate', id, tenant, 'of', #first == 16 and hex(first) or '') end
    else
      marks[place] = '1'
      if marker then plan.markers[marker] = id end
      if #stored > plan.largest then plan.largest = #stored end
      if journaled then
        record_event(stored_event, id, tenant, details_of(stored, payloads and payloads[place]))
      end
      due = due and due ~= '' and tonumber(due) + (string.sub(due, 1, 1) == '+' and now or 0)
      if due and due > now then
        local nth = #plan.bodies
        plan.due_times[nth + 1], plan.due_times[nth + 2] = due, id
        plan.bodies[nth + 1], plan.bodies[nth + 2] = id, stored
        record_event('delayed', id, tenant, 'due', string.format('%.0f', due))
      else
        if not tenants[tenant] then
          tenants[tenant] = {}
          table.insert(plan.order, tenant)
        end
        table.insert(tenants[tenant], stored)
      end
    end
  end

  -- How many must leave which list, at most 1,000 in all so that the script stays short (`store_messages` counts their
  -- bytes): first what the limit of a tenant demands, from its own list, then the rest from the longest lists.
  local entering, over, may_leave, before = #plan.bodies / 2, 0, MAX_MESSAGES, {}
  for _, tenant in ipairs(plan.order) do
    local new, bound = #plan.messages[tenant], tenant ~= '' and tenant_limit or 0
    before[tenant] = redis.call('LLEN', pending_of(tenant))
    local excess = bound > 0 and math.max(before[tenant] + new - bound, 0) or 0
    if excess > 0 and (not drops or new > bound) then return marks, nil end
    local leaving = math.min(excess, may_leave)
    plan.leaving[tenant] = leaving
    may_leave, entering, over = may_leave - leaving, entering + new, over - leaving
  end
  check_queues()
  redis.call('HLEN', deliveries)
  redis.call('ZCARD', delayed)
  redis.call('HLEN', delayed_messages)
  if limit > 0 and entering > 0 then
    local backlog = redis.call('GET', tenant_backlog) or 0
    local in_lists = redis.call('LLEN', pending) + backlog
    local waiting = in_lists + redis.call('ZCARD', delayed)
    over = over + waiting + entering - limit
    if over > 0 and not drops then return marks, nil end
    if drops then
      plan.was_longest, plan.in_ring = redis.call('GET', longest) or nil, redis.call('ZCARD', tenant_ring)
      if over > 0 then over, may_leave = make_room(plan, before, over, may_leave, in_lists) end
      for _, tenant in ipairs(plan.in_ring > SAMPLE and plan.order or {}) do
        -- A tenant that has more than half of all messages has the longest list.
        local length = before[tenant] + #plan.messages[tenant]
        if tenant ~= '' and 2 * length > waiting + entering then plan.longest = tenant end
      end
    end
  end
  if over > 0 and may_leave > 0 then return marks, nil end
  return marks, plan
end

-- Returns whether to wake a consumer, the ids of the messages that were dropped, and how many bytes of them were read.
local function store_messages(plan, window_ms)
  local wakes, dropped, known = false, {}, {}
  remember_largest(plan.largest)
  for _, tenant in ipairs(plan.order) do
    wakes = push_pending('LPUSH', tenant, plan.messages[tenant]) or wakes
  end
  if #plan.bodies > 0 then wakes = delay_messages(plan.due_times, plan.bodies) or wakes end
  for marker, id in pairs(plan.markers) do redis.call('PSETEX', marker, window_ms, id) end
  local budget = new_budget(largest)
  local function note_dropped(stored, tenant)
    budget.count(stored)
    if not is_message(stored) then return end
    table.insert(dropped, id_of(stored))
    record_event('dropped', id_of(stored), tenant)
    if has_entry(stored) then table.insert(known, id_of(stored)) end
  end
  -- In pieces, because a list does not tell how large its elements are. What the budget of bytes leaves, the next
  -- publishes drop.
  local function drop_oldest(tenant)
    local leaving, gone = plan.leaving[tenant], 0
    while gone < leaving and not budget.is_spent() do
      local piece = redis.call('RPOP', pending_of(tenant), budget.next_piece(leaving - gone))
      for _, stored in ipairs(piece) do note_dropped(stored, tenant) end
      gone = gone + #piece
    end
    if tenant ~= '' then reduce_backlog(gone) end
    if plan.emptied[tenant] and gone == leaving then leave_ring(tenant) end
  end
  for _, tenant in ipairs(plan.order) do drop_oldest(tenant) end
  for _, tenant in ipairs(plan.neighbours) do drop_oldest(tenant) end
  if plan.longest and plan.longest ~= plan.was_longest then
    redis.call('PSETEX', longest, REMEMBERED_MS, plan.longest)
  end
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  return wakes, table.concat(dropped), budget.bytes()
end
