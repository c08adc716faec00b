-- put_off.lua: a message whose handler failed waits for its next attempt, if the caller holds it.
-- KEYS  processing: id to stored message | leases: id and nonce by deadline | deliveries: id to attempts and counts
--       pending: the line of messages without a tenant | tenants: those with work, by virtual time
--       delayed: id by due time | later: id to stored message | bell: a token if there is work
--       journal: what has happened | meta: version of what is stored, rules of the journal
--       reply: the caller's last answer
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the caller has leases
--       line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       delay_us: how long it waits | error_type: of the failure | call: the caller's number for this call
--       tokens: the lease of the message
-- Returns '1' if it waits, '0' if it was not the caller's any more and is untouched.
local processing, leases, deliveries, pending, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local delayed, later, bell = KEYS[6], KEYS[7], KEYS[8]
local journal, meta, reply = KEYS[9], KEYS[10], KEYS[11]
local keep_ms, leased, line, returned, delay_us = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4], tonumber(ARGV[5])
local error_type, call, tokens = ARGV[6], ARGV[7], ARGV[8]
local size, weights -- nobody enters a line here
--@include reply
if answer then return answer end
--@include journal
--@include envelope
--@include ledger
--@include lines
--@include later
--@include held

local silent = redis.call('LLEN', bell) == 0
check_lines()
redis.call('ZCARD', delayed)
redis.call('HLEN', later)
redis.call('HLEN', deliveries)
local id, bodies = ids[1], redis.call('HMGET', processing, fields[1])
local stored = bodies[1]
if not stored or not is_message(stored) or not find_leases(bodies)[1] then return '0' end
local attempts, times, failures = read_entry(deliveries, id, stored, 1)
local tenant = tenant_of(stored)
check_line(tenant)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local due = now + delay_us
-- The first write is one that a server without memory accepts. It removes nothing: in a slot that is leaving, a key
-- that it emptied would count as moved, and the alarm of the delays could not enter it.
redis.call('HDEL', processing, '')
-- A failure is counted by itself: it does not use up the deliveries that are meant for crashes.
redis.call('HSET', deliveries, id, write_entry(attempts, times - 1, failures + 1))
local is_next = put_off({due, id}, {id, with_entry(stored)})
redis.call('HDEL', processing, fields[1])
if leased then redis.call('ZREM', leases, tokens) end
if came_back[tenant] then leave_returned(tenant, came_back[tenant]) end
tell(
  'retried', id, tenant, 'due', string.format('%.0f', due), 'failures', failures + 1, 'error_type', error_type
)
write_journal(now)
if is_next and silent then redis.call('LPUSH', bell, '1') end
redis.call('PSETEX', reply, keep_ms, call .. '1')
return '1'
