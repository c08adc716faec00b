-- lib/emptied.lua: forgets what only concerns messages of a queue when it is empty.
-- Needs  pending, processing, tenant_ring, delayed, cancelled, tenant_in_flight, meta, largest, cancels, counts
-- Makes  forget_emptied
-- One large message makes scripts read smaller pieces, until a consumer finds the queue empty. The mark of a cancelled
-- message whose list was purged would stay for its whole life: no claim meets it. But a batch of a streaming query may
-- still bring back a message that was marked meanwhile ('g').
local function forget_emptied()
  if largest == 0 and cancels ~= '1' and not counts then return end
  local waiting = redis.pcall('EXISTS', pending, processing, tenant_ring, delayed)
  if waiting ~= 0 then return end
  redis.call('HDEL', meta, 'largest', 'counts')
  -- It is empty, unless somebody removed messages by hand. A key of another program is left alone.
  if counts and type(redis.pcall('ZCARD', tenant_in_flight)) == 'number' then redis.call('UNLINK', tenant_in_flight) end
  if cancels == '1' then
    redis.call('UNLINK', cancelled)
    redis.call('HDEL', meta, 'cancels')
  end
end
