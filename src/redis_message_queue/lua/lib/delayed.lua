-- lib/delayed.lua: stores messages until they are due.
-- Needs  delayed, delayed_messages, leases, meta, uses_tenants
-- Makes  delay_messages
-- The member 'd' of `leases` is an alarm: due when the first delayed message is, or earlier, never later.
--@include envelope

-- Takes ids by due time (due, id, due, id, ...) and bodies (id, stored, ...). Returns whether one of them is due next.
local function delay_messages(due_times, bodies)
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  redis.call('HSET', delayed_messages, unpack(bodies))
  redis.call('ZADD', delayed, unpack(due_times))
  for at = 2, uses_tenants and 0 or #bodies, 2 do
    -- A claim that finds thousands of them due must know that there are tenants before it has looked at all.
    if tenant_of(bodies[at]) ~= '' then redis.call('HSET', meta, 'tenants', 1) break end
  end
  local soonest = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  if soonest == first then return false end
  redis.call('ZADD', leases, soonest, 'd')
  return true
end
