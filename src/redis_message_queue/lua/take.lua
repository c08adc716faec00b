-- take.lua: leases the first message to the caller on the fast path: nothing is due, and the message is plain.
-- KEYS  pending | processing | leases | meta | reply
-- ARGV  hold_ms: how long the answer is kept | lease_us (number): length of a lease
--       call | nonce: 20 bytes that no other claim has, see claim.lua
-- Returns the stored message; nil if no message waits; or 0 if this is another case: claim.lua knows them all. A queue
--       without leases, or with a limit on the age of its messages, is one of them. Without a message nothing changes.
--@include reply
--@include fast_path_state
if answer or journaled or paused or cancels then return 0 end
--@include clock
if redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1)[1] then return 0 end
local stored = redis.call('LINDEX', pending, -1)
if not stored then return false end
-- As in lib/plain.lua: never delivered, no tenant, no extras.
if string.byte(stored, 1) ~= 0x80 or string.byte(stored, 18) ~= 0 or #stored < 25 then return 0 end
local id = string.sub(stored, 2, 17)
-- A full server refuses this: claim.lua goes on there.
if type(redis.pcall('HSET', processing, id, stored)) ~= 'number' then return 0 end
redis.call('ZADD', leases, now + lease_us, id .. nonce)
redis.call('RPOP', pending)
redis.call('PSETEX', reply, hold_ms, call .. 'u' .. id)
return stored
