-- pause.lua: lets no consumer claim messages of a queue or of one tenant, or lets them claim again.
-- KEYS  pending | leases | wakeup | tenant_ring | tenant_backlog | weights | journal | meta | reply
-- ARGV  keep_ms | tenant_pending | expired | call | pauses (flag): 1 to pause, 0 to resume
--       tenant: '' for the whole queue
-- Returns '1' if that has changed something, '0' if it was so already.
--@include reply
if answer then return answer end
--@include state
--@include clock
--@include ring
--@include wake
--@include remember
check_queues()
local field = tenant == '' and 'paused' or PAUSED .. tenant
local changes = (redis.call('HEXISTS', meta, field) == 1) ~= pauses
local waits = tenant ~= '' and redis.call('ZSCORE', tenant_ring, tenant)

-- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
redis.call('HDEL', meta, '')
if changes and pauses then
  redis.call('HSET', meta, field, string.format('%.0f', now))
elseif changes then
  redis.call('HDEL', meta, field)
end
if changes and tenant ~= '' then
  local left = redis.pcall('HINCRBY', meta, 'paused_tenants', pauses and 1 or -1)
  -- A damaged number: claims go on looking.
  if type(left) ~= 'number' or pauses and left < 1 then redis.call('HSET', meta, 'paused_tenants', 1) end
  if type(left) == 'number' and left < 1 and not pauses then redis.call('HDEL', meta, 'paused_tenants') end
  if waits and pauses then redis.call('ZADD', tenant_ring, PARKED, tenant) end
  if waits and not pauses then join_ring(tenant) end -- as a tenant that comes with its first message
end
if not pauses then wake() end
return remember(changes and '1' or '0')
