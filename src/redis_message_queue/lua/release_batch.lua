-- release_batch.lua: returns the claims of a consumer group to the heads of their lists, the last claim first.
-- KEYS  pending | leases | deliveries | wakeup | tenant_ring | tenant_backlog | weights | group
--       members: the messages of the claim to return | groups | journal | meta
-- ARGV  tenant_pending | expired | whose: the group's name | query: who calls | epoch: the caller's
--       number (number): of the claim to return, the last one left
--       keep (number): how many of its places stay for another call, at most 1,000 fewer than there are
-- Returns {releasing, left}: the next claim and how many places it has; {0, 0} when all is done.
--@include group
--@include batch
--@include state
--@include clock
--@include journal
--@include delivery_state
--@include ring
--@include bounded
--@include check_types
local sealed, acked, releasing = progress.sealed, progress.acked, progress.releasing
if progress.cleared < acked then error('acked batches must be cleared before the rest is released', 0) end
if batch_of(sealed + 1).places > 0 then error('the open batch must be sealed before it is released', 0) end
if releasing == 0 then releasing = sealed end
if sealed == acked then return {0, 0} end
local released = batch_of(releasing)
local count, widest = released.places, released.widest
if number ~= releasing or keep >= count and count > 0 then return {releasing, count} end
if count - keep > MAX_MESSAGES then error(TOO_MANY, 0) end

check_queues()
check_types('HLEN', deliveries, groups)
--@include wake
local tail, wanted, budget = {}, count - keep, new_budget(widest)
while #tail < wanted and not budget.is_spent() do
  local first = count - #tail - budget.next_piece(wanted - #tail)
  local some = redis.call('LRANGE', members, first, count - #tail - 1)
  if #some == 0 then break end
  for place = #some, 1, -1 do
    if budget.is_spent() then break end
    budget.count(some[place])
    tail[#tail + 1] = some[place]
  end
end
local kept = #tail > 0 and count - #tail or keep -- more than `keep` if the messages are too large for one script
local bodies, order, entries, empty = {}, {}, {}, 0
for _, member in ipairs(tail) do
  local stored = from_member(member)
  local is_ours = stored and is_message(stored)
  local tenant = is_ours and tenant_of(stored) or ''
  if member == EMPTY then
    empty = empty + 1
  elseif not bodies[tenant] then
    bodies[tenant] = {}
    order[#order + 1] = tenant
    check_tenant(tenant)
  end
  if is_ours then
    local id = id_of(stored)
    local attempts, times, failures = read_entry(id, stored, 1)
    table.insert(bodies[tenant], with_entry(stored))
    entries[#entries + 1] = id
    -- The query may have handled it, so this delivery counts.
    entries[#entries + 1] = write_entry(attempts, times, failures)
    record_event('requeued', id, tenant)
  elseif member ~= EMPTY then
    table.insert(bodies[tenant], member) -- the next claim sets it aside, with its reason
  end
end

-- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
redis.call('HDEL', group, '')
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
remember_largest(widest)
for _, tenant in ipairs(order) do push_pending('RPUSH', tenant, bodies[tenant]) end
local left_empty = math.min(kept, math.max(0, released.empty - empty))
local moved = released.messages - (kept - left_empty)
released.messages, released.empty = kept - left_empty, left_empty
write_batch(number, released, -moved)
if kept == 0 then releasing = number - 1 end
redis.call('HSET', group, 'released', sealed, 'releasing', releasing)
if releasing == acked then
  redis.call('HSET', group, 'acked', sealed, 'cleared', sealed)
  redis.call('HDEL', group, 'releasing')
end
if #tail > 0 then wake() end
local left = releasing == number and kept or batch_of(releasing).places
if kept == 0 then redis.call('UNLINK', members) else redis.call('LTRIM', members, 0, kept - 1) end
write_journal()
if releasing == acked then return {0, 0} end
return {releasing, left}
