-- cancel.lua: removes a delayed message, or marks a waiting one so that the claim that meets it drops it.
-- KEYS  pending | processing | leases | deliveries | tenant_ring | delayed | delayed_messages | cancelled | groups
--       journal | meta | reply
-- ARGV  keep_ms | leased (flag) | mark_ms (number): how long a mark is kept
--       withdraws (flag): 1 to remove the mark of a message that is in another partition | call | id: of the message
-- Returns 'cancelled' if it was delayed, and is gone; 'in_flight' if a consumer has it, and nothing has changed;
--       'unknown' if there is no such message; or 'marked'. A list cannot be asked for an id without reading it, so a
--       message that does not exist is marked, too, if others wait. 'unknown' if the mark is withdrawn.
--@include reply
if answer then return answer end
--@include state
--@include clock
--@include journal
--@include envelope
--@include check_types
--@include remember
local STALE = 100 -- so many old marks go with each new one

check_types('ZCARD', leases, cancelled)
check_types('HLEN', deliveries)
local stored, in_flight = redis.call('HGET', delayed_messages, id), redis.call('HEXISTS', processing, id) == 1
local is_last = redis.call('ZSCORE', delayed, id) and redis.call('ZCARD', delayed) == 1
local in_batches = (tonumber(redis.call('HGET', groups, '') or 0) or 1) > 0 -- a damaged number counts as some
local waits = redis.call('LLEN', pending) + redis.call('ZCARD', tenant_ring) > 0 or in_batches
-- Without leases, `processing` has tokens for fields: what is in flight there may come back, too.
waits = waits or not leased and redis.call('HLEN', processing) > 0
local result

if withdraws then
  result = 'unknown'
  redis.call('ZREM', leases, '') -- as below
  -- With the last mark, claims are quick again. In a slot that is leaving its node, an error means that none is left.
  local removed, left = redis.call('ZREM', cancelled, id), redis.pcall('ZCARD', cancelled)
  if removed == 1 and (left == 0 or type(left) == 'table') then redis.call('HDEL', meta, 'cancels') end
elseif stored then
  result = 'cancelled'
  redis.call('ZREM', delayed, id)
  redis.call('HDEL', delayed_messages, id)
  redis.call('HDEL', deliveries, id)
  if cancels then redis.call('ZREM', cancelled, id) end -- it was marked in flight, in a queue without leases
  if is_last then redis.call('ZREM', leases, 'd') end
  record_event('cancelled', id, is_message(stored) and tenant_of(stored) or '', 'reason', 'cancelled')
  write_journal()
elseif in_flight or not waits then
  result = in_flight and 'in_flight' or 'unknown'
  redis.call('ZREM', leases, '') -- a first write that a server without memory accepts: see rule 2 of README.md
else
  result = 'marked'
  redis.call('ZADD', cancelled, now, id) -- a server without memory refuses it, before anything has changed
  redis.call('PEXPIRE', cancelled, mark_ms)
  local flag = (in_batches or cancels == 'g') and 'g' or '1'
  if cancels ~= flag then redis.call('HSET', meta, 'cancels', flag) end
  local oldest = string.format('%.0f', now - 1000 * mark_ms)
  local stale = redis.call('ZRANGEBYSCORE', cancelled, '-inf', oldest, 'LIMIT', 0, STALE)
  if #stale > 0 then redis.call('ZREM', cancelled, unpack(stale)) end
end
return remember(result)
