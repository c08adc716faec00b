-- release.lua: the claims of a consumer group return to the heads of their lines, in their order, from the last one on.
-- KEYS  pending: the line of messages without a tenant | leases: id and nonce by deadline
--       deliveries: id to attempts and counts | bell: a token if there is work
--       tenants: those with work, by virtual time | size: how many wait in the lines of tenants
--       weights: tenant to weight | group: what is known of the consumer group
--       members: the messages of the claim to be given back | groups: how many messages lie in each group
--       journal: what has happened | meta: version of what is stored, rules of the journal
-- ARGV  line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       whose: the group's name | epoch: the caller's | number: of the claim to be given back, the last one that is left
--       keep: how many of its messages stay there for another call, at most 1,000 less than there are
-- Returns {releasing, left}: the claim that is next and how many messages lie there; {0, 0} when all is done.
local pending, leases, deliveries, bell, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local size, weights, group, members, groups = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local journal, meta = KEYS[11], KEYS[12]
local line, returned, whose, epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local number, keep = tonumber(ARGV[5]), tonumber(ARGV[6])
--@include group
--@include member
--@include envelope
--@include ledger
--@include lines
--@include journal
--@include bounded
if cleared < acked then error('what is handled must be cleared before the rest is given back', 0) end
if counted(sealed + 1) > 0 then error('the open claim must be sealed before it is given back', 0) end
local releasing = tonumber(state[6] or 0)
if releasing == 0 then releasing = sealed end
if sealed == acked then return {0, 0} end
local count, known = counted(releasing)
if number ~= releasing or keep >= count and count > 0 then return {releasing, count} end
if count - keep > 1000 then error('at most 1,000 messages in one call', 0) end

check_lines()
redis.call('HLEN', deliveries)
redis.call('HLEN', groups)
local silent = redis.call('LLEN', bell) == 0
local tail, wanted = {}, count - keep
while #tail < wanted and not is_much() do
  local some = redis.call('LRANGE', members, count - #tail - next_piece(wanted - #tail), count - #tail - 1)
  if #some == 0 then break end
  for place = #some, 1, -1 do
    if is_much() then break end
    count_bytes(some[place])
    tail[#tail + 1] = some[place]
  end
end
if #tail > 0 then keep = count - #tail end -- as many as are not too large for one script
local bodies, order, entries = {}, {}, {}
for _, member in ipairs(tail) do
  local stored = stored_in(member)
  local tenant, id = tenant_of(stored), id_of(stored)
  if not bodies[tenant] then
    bodies[tenant] = {}
    order[#order + 1] = tenant
    check_line(tenant)
  end
  local attempts, times, failures = read_entry(deliveries, id, stored, 1)
  table.insert(bodies[tenant], with_entry(stored))
  entries[#entries + 1] = id
  -- It may have been handled, so this delivery counts.
  entries[#entries + 1] = write_entry(attempts, times, failures)
  tell('given_back', id, tenant)
end

-- The first write is one that a server without memory accepts.
redis.call('HDEL', group, '')
if #entries > 0 then redis.call('HSET', deliveries, unpack(entries)) end
for _, tenant in ipairs(order) do enter_line('RPUSH', tenant, bodies[tenant]) end
count_members(number, keep, known, keep - count)
if keep == 0 then releasing = number - 1 end
redis.call('HSET', group, 'released', sealed, 'releasing', releasing)
if releasing == acked then
  redis.call('HSET', group, 'acked', sealed, 'cleared', sealed)
  redis.call('HDEL', group, 'releasing')
end
if #tail > 0 and silent then redis.call('LPUSH', bell, '1') end
local left = releasing == number and keep or counted(releasing)
if keep == 0 then redis.call('UNLINK', members) else redis.call('LTRIM', members, 0, keep - 1) end
local time = redis.call('TIME')
write_journal(time[1] * 1000000 + time[2])
if releasing == acked then return {0, 0} end
return {releasing, left}
