-- give_back.lua: messages return to the head of their lines, in their order, if the caller holds them.
-- KEYS  pending: the line of messages without a tenant | processing: id to stored message | leases: id by deadline
--       deliveries: id to lease number and count | bell: a token if there is work
--       tenants: those with work, by virtual time | size: how many wait in the lines of tenants
--       weights: tenant to weight | journal: what has happened | journal_state: its rules and marks
--       reply: the caller's last answer
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the queue has leases
--       line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       forgiven: 1 if this delivery does not count against the limit
--       call: the caller's number for this call | whom: the ids, one behind the other, the oldest first
--       numbers: their lease numbers with spaces between, '' if all of them are 1
-- Returns '1' or '0' for each message: given back, or stale and untouched.
local pending, processing, leases, deliveries, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local tenants, size, weights = KEYS[6], KEYS[7], KEYS[8]
local journal, journal_state, reply = KEYS[9], KEYS[10], KEYS[11]
local keep_ms, leased, line, returned = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4]
local forgiven, call, whom, numbers = ARGV[5] == '1', ARGV[6], ARGV[7], ARGV[8]
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
local marks, held, entries, bodies, order, came_back, seen = {}, {}, {}, {}, {}, {}, {}
local deadlines = leased and redis.call('ZMSCORE', leases, unpack(ids))
for nth, stored in ipairs(redis.call('HMGET', processing, unpack(ids))) do
  local id, lease, times, failures = ids[nth]
  if stored then lease, times, failures = read_entry(deliveries, id, stored, 1) end
  if stored and lease == lease_number(nth) and not seen[id] then
    seen[id] = true
    local tenant = tenant_of(stored)
    if not bodies[tenant] then
      bodies[tenant] = {}
      order[#order + 1] = tenant
      check_line(tenant)
    end
    table.insert(bodies[tenant], 1, with_entry(stored))
    if leased and not deadlines[nth] and redis.call('ZSCORE', returned .. tenant, id) then
      came_back[#came_back + 1] = {returned .. tenant, id}
    end
    held[#held + 1] = id
    marks[#marks + 1] = '1'
    tell('given_back', id, tenant)
    entries[#entries + 1] = id
    -- The lease number stays, so that the next holder gets a higher one and this one is fenced off.
    entries[#entries + 1] = write_entry(lease, forgiven and times - 1 or times, failures)
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
  if leased then redis.call('ZREM', leases, unpack(held)) end
  for _, one in ipairs(came_back) do redis.call('ZREM', one[1], one[2]) end
  if silent then redis.call('LPUSH', bell, '1') end
  local time = redis.call('TIME')
  write_journal(time[1] * 1000000 + time[2])
  redis.call('PSETEX', reply, keep_ms, call .. answer)
end
return answer
