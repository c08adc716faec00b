-- lib/emptied.lua: forgets how large messages were when a queue is empty.
-- Needs  pending, processing, tenant_ring, delayed, meta, largest
-- Makes  forget_largest
-- One large message makes scripts read smaller pieces, until a consumer finds the queue empty.
local function forget_largest()
  if largest == 0 then return end
  local waiting = redis.pcall('EXISTS', pending, processing, tenant_ring, delayed)
  if waiting == 0 then redis.call('HDEL', meta, 'largest') end
end
