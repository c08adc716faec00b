-- ack_one.lua: removes a message that the caller owns on the fast path: it has a lease and was delivered once.
-- KEYS  processing | leases | meta | reply
-- ARGV  keep_ms | call | token
-- Returns '1', or '' if this is another case, and nothing has changed: settle.lua knows them all.
--@include reply
if answer then return answer end
--@include fast_path_state
local id = string.sub(token, 1, 16)
local stored = not journaled and redis.call('HGET', processing, id)
-- 0x80 and, with a tenant, 0x81: no entry, no extras. settle.lua knows how to count the messages of a tenant.
local is_bare = stored and (string.byte(stored, 1) or 0) <= (counts and 0x80 or 0x81)
-- The first write is one that a full server accepts: see rule 2 of README.md.
if not is_bare or redis.call('ZREM', leases, token) == 0 then return '' end
redis.call('HDEL', processing, id)
redis.call('PSETEX', reply, keep_ms, call .. '1')
return '1'
