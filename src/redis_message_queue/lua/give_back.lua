-- give_back.lua: messages return to the head of their lines, in their order, if the caller holds them.
-- KEYS  pending: the line of messages without a tenant | processing: id to stored message
--       leases: id and nonce by deadline | deliveries: id to attempts and counts | bell: a token if there is work
--       tenants: those with work, by virtual time | size: how many wait in the lines of tenants
--       weights: tenant to weight | journal: what has happened
--       meta: version of what is stored, rules of the journal | reply: the caller's last answer
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the caller has leases
--       line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       forgiven: 1 if no handler has seen them, and this was no delivery
--       call: the caller's number for this call | tokens: the leases, one behind the other, the oldest message first
-- Returns '1' or '0' for each message: given back, or stale and untouched.
local pending, processing, leases, deliveries, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local tenants, size, weights = KEYS[6], KEYS[7], KEYS[8]
local journal, meta, reply = KEYS[9], KEYS[10], KEYS[11]
local keep_ms, leased, line, returned = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4]
local forgiven, call, tokens = ARGV[5] == '1', ARGV[6], ARGV[7]
--@include reply
if answer then return answer end
--@include journal
--@include envelope
--@include ledger
--@include lines

--@include held
local silent = redis.call('LLEN', bell) == 0
check_lines()
redis.call('HLEN', deliveries)
local marks, held, ended, entries, bodies, order, seen = {}, {}, {}, {}, {}, {}, {}
local in_flight = redis.call('HMGET', processing, unpack(fields))
local deadlines = find_leases(in_flight)
for nth, stored in ipairs(in_flight) do
  local id = ids[nth]
  if stored and deadlines[nth] and is_message(stored) and not seen[id] then
    seen[id] = true
    local attempts, times, failures = read_entry(deliveries, id, stored, 1)
    local tenant = tenant_of(stored)
    if not bodies[tenant] then
      bodies[tenant] = {}
      order[#order + 1] = tenant
      check_line(tenant)
    end
    table.insert(bodies[tenant], 1, with_entry(stored))
    held[#held + 1] = fields[nth]
    ended[#ended + 1] = members[nth]
    marks[#marks + 1] = '1'
    tell('given_back', id, tenant)
    local counted = forgiven and 1 or 0
    entries[#entries + 1] = id
    entries[#entries + 1] = write_entry(attempts - counted, times - counted, failures)
  else
    marks[#marks + 1] = '0'
  end
end
answer = table.concat(marks)

if #held > 0 then
  -- The first write is one that a server without memory accepts. It removes nothing: in a slot that is leaving, a key
  -- that it emptied would count as moved, and the alarm of the ring could not enter it.
  redis.call('HDEL', processing, '')
  redis.call('HSET', deliveries, unpack(entries))
  for _, tenant in ipairs(order) do enter_line('RPUSH', tenant, bodies[tenant]) end
  redis.call('HDEL', processing, unpack(held))
  if leased then redis.call('ZREM', leases, unpack(ended)) end
  for tenant, theirs in pairs(came_back) do redis.call('ZREM', returned .. tenant, unpack(theirs)) end
  if silent then redis.call('LPUSH', bell, '1') end
  local time = redis.call('TIME')
  write_journal(time[1] * 1000000 + time[2])
  redis.call('PSETEX', reply, keep_ms, call .. answer)
end
return answer
