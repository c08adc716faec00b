-- retry_later.lua: delays a message that the caller owns, after its handler failed, until its next attempt.
-- KEYS  processing | leases | deliveries | pending | tenant_ring | delayed | delayed_messages | wakeup
--       tenant_in_flight | journal | meta | reply
-- ARGV  keep_ms | leased (flag) | tenant_pending | expired
--       ordered (flag): whether no other message of its tenant may be delivered meanwhile
--       delay_us (number): how long it waits
--       error_type: of the failure | handled: two numbers as in settle.lua, or '' | call | tokens: of one message
-- Returns '1' if the message waits, '0' if it is not the caller's and untouched.
--@include reply
if answer then return answer end
--@include state
--@include clock
--@include journal
--@include delivery_state
--@include delayed
--@include in_flight
--@include owned
--@include wake
--@include check_types
--@include remember
if counts then redis.call('ZCARD', tenant_in_flight) end
check_types('ZCARD', leases, tenant_ring, delayed)
check_types('HLEN', delayed_messages, deliveries)
local id, bodies = ids[1], redis.call('HMGET', processing, fields[1])
local stored = bodies[1]
if not stored or not is_message(stored) then return '0' end
local owned, expired_by_tenant = find_leases(bodies)
if not owned[1] then return '0' end
local attempts, times, failures = read_entry(id, stored, 1)
local tenant, due = tenant_of(stored), now + delay_us
check_tenant(tenant)
-- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
redis.call('HDEL', processing, '')
-- A failure has its own number: it does not use up the deliveries that are meant for crashes.
redis.call('HSET', deliveries, id, write_entry(attempts, times - 1, failures + 1))
local keeps_place, wakes = ordered and leased and tenant ~= '', true
if keeps_place then
  -- It stays in flight, as if its lease ended when it is due: then it comes before all others of its tenant.
  redis.call('HSET', processing, id, with_entry(stored))
  redis.call('ZADD', leases, due, string.sub(tokens, 1, 31) .. NOBODY)
else
  wakes = delay_messages({due, id}, {id, with_entry(stored)})
  redis.call('HDEL', processing, fields[1])
end
if leased then redis.call('ZREM', leases, tokens) end
if expired_by_tenant[tenant] then remove_expired(tenant, expired_by_tenant[tenant]) end
if not keeps_place then wakes = leave_flight(tenant, {id}) or wakes end
local due_text = string.format('%.0f', due)
record_event('retried', id, tenant, 'due', due_text, 'failures', failures + 1, 'error_type', error_type,
  handler_times(string.match(handled, '^(%d+) (%d+)$')))
write_journal()
if wakes then wake() end
return remember('1')
