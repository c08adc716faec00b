-- ack_and_take.lua: removes a message that the caller owns and leases it the next one, on the fast path of both.
-- KEYS  pending | processing | leases | meta | reply | ack_reply: the slot of the ack, which has a number of its own
-- ARGV  hold_ms: how long both answers are kept | lease_us (number): length of a lease
--       call | nonce: 20 bytes that no other claim has, see claim.lua | ack_call | token: of the message to remove
-- Returns the stored message; or 0 if this is another case of either, and nothing has changed: settle.lua and claim.lua
--       know them all. They find the answers of both halves, each under its number. To find no message is one of these
--       cases, and so are those of take.lua and ack_one.lua.
--@include reply
local settled = redis.call('GET', ack_reply)
if answer or (settled and string.sub(settled, 1, 12) >= ack_call) then return 0 end
--@include fast_path_state
if journaled or paused or cancels then return 0 end
--@include clock
if redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1)[1] then return 0 end
local done_id = string.sub(token, 1, 16)
local done, stored = redis.call('HGET', processing, done_id), redis.call('LINDEX', pending, -1)
-- As in ack_one.lua, and without a tenant.
if not done or string.byte(done, 1) ~= 0x80 or not redis.call('ZSCORE', leases, token) then return 0 end
-- As in lib/plain.lua: never delivered, no tenant, no extras.
if not stored or string.byte(stored, 1) ~= 0x80 or string.byte(stored, 18) ~= 0 or #stored < 25 then return 0 end
local id = string.sub(stored, 2, 17)
-- A full server refuses this: settle.lua and claim.lua go on there.
if type(redis.pcall('HSET', processing, id, stored)) ~= 'number' then return 0 end
redis.call('ZADD', leases, now + lease_us, id .. nonce)
redis.call('RPOP', pending)
redis.call('ZREM', leases, token)
redis.call('HDEL', processing, done_id)
redis.call('PSETEX', ack_reply, hold_ms, ack_call .. '1')
redis.call('PSETEX', reply, hold_ms, call .. 'u' .. id)
return stored
