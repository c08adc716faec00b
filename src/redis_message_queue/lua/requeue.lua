-- requeue.lua: returns messages that the caller owns to the heads of their lists, in their order.
-- KEYS  pending | processing | leases | deliveries | wakeup | tenant_ring | tenant_backlog | weights | tenant_in_flight
--       journal | meta | reply
-- ARGV  keep_ms | leased (flag) | tenant_pending | expired
--       forgiven (flag): 1 if no handler has seen them, so that this delivery does not count | call
--       tokens: the oldest message first
-- Returns '1' or '0' for each message: requeued, or not the caller's and untouched.
--@include reply
if answer then return answer end
--@include state
--@include clock
--@include journal
--@include delivery_state
--@include ring
--@include in_flight
--@include owned
--@include wake
--@include remember
if counts then redis.call('ZCARD', tenant_in_flight) end
check_queues()
redis.call('HLEN', deliveries)
local marks, owned, ended, entries, bodies, order, seen, leaving = {}, {}, {}, {}, {}, {}, {}, {}
local in_flight = redis.call('HMGET', processing, unpack(fields))
local deadlines, expired_by_tenant = find_leases(in_flight)
for nth, stored in ipairs(in_flight) do
  local id = ids[nth]
  if stored and deadlines[nth] and is_message(stored) and not seen[id] then
    seen[id] = true
    local attempts, times, failures = read_entry(id, stored, 1)
    local tenant = tenant_of(stored)
    if not bodies[tenant] then
      bodies[tenant] = {}
      order[#order + 1] = tenant
      check_tenant(tenant)
    end
    table.insert(bodies[tenant], 1, with_entry(stored))
    owned[#owned + 1] = fields[nth]
    ended[#ended + 1] = members[nth]
    marks[#marks + 1] = '1'
    record_event('requeued', id, tenant)
    leaving[tenant] = leaving[tenant] or {}
    table.insert(leaving[tenant], id)
    local uncounted = forgiven and 1 or 0
    entries[#entries + 1] = id
    entries[#entries + 1] = write_entry(attempts - uncounted, times - uncounted, failures)
  else
    marks[#marks + 1] = '0'
  end
end
local result = table.concat(marks)

if #owned > 0 then
  -- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
  redis.call('HDEL', processing, '')
  redis.call('HSET', deliveries, unpack(entries))
  for _, tenant in ipairs(order) do push_pending('RPUSH', tenant, bodies[tenant]) end
  redis.call('HDEL', processing, unpack(owned))
  if leased then redis.call('ZREM', leases, unpack(ended)) end
  for tenant, expired_members in pairs(expired_by_tenant) do
    redis.call('ZREM', expired .. tenant, unpack(expired_members))
  end
  for _, tenant in ipairs(order) do leave_flight(tenant, leaving[tenant]) end
  wake()
  write_journal()
  remember(result)
end
return result
