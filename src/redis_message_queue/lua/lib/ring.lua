-- lib/ring.lua: how messages enter the lists where they wait, and their tenants the ring.
-- Needs  tenant_ring, tenant_backlog, weights, leases, meta, tenant_pending, uses_tenants, paused_tenants
-- Makes  check_queues, join_ring, rebase_ring, push_pending
--@include tenants
--@include turns

-- Somebody damaged the number of waiting messages: count them. (UNLINK first: a server without memory accepts it.)
local function recount_backlog()
  local waiting = 0
  for _, tenant in ipairs(redis.call('ZRANGE', tenant_ring, 0, -1)) do
    if tenant ~= '' then waiting = waiting + redis.call('LLEN', tenant_pending .. tenant) end
  end
  redis.call('UNLINK', tenant_backlog)
  if waiting > 0 then redis.call('SET', tenant_backlog, waiting) end
end

-- A key of a wrong type, or one that has moved, fails here, before the script writes anything.
local function check_queues()
  redis.call('ZCARD', leases)
  local in_ring = redis.call('ZCARD', tenant_ring)
  redis.call('HLEN', weights)
  -- Text like '007' or a number of 20 digits looks right, but INCRBY refuses it when the messages are already stored.
  local waiting = redis.call('GET', tenant_backlog)
  -- Also if it counts messages of nobody: somebody deleted the list of a tenant by hand.
  local is_number = waiting and #waiting <= 15 and string.match(waiting, '^[1-9]%d*$')
  if waiting and (in_ring == 0 or not is_number) then recount_backlog() end
end

-- Whether a score is a time that turns can lead to; somebody may have written another one, even an infinite one.
local function is_time(score)
  return tonumber(score) >= 0 and tonumber(score) <= REBASE_AT + 2 * STRIDE
end

-- The field of `meta` tells, as long as any tenant is paused.
local function is_paused(tenant)
  return paused_tenants and redis.call('HEXISTS', meta, PAUSED .. tenant) == 1
end

-- A tenant that joins comes after all who wait for their first turn of this round, and before the second turn of
-- anyone: so nobody waits longer than a round, and nobody gains by leaving and joining again.
local function join_ring(tenant)
  redis.call('ZADD', leases, 0, 'r')
  if tenant ~= '' and not uses_tenants then redis.call('HSET', meta, 'tenants', 1) end
  local score = redis.call('ZSCORE', tenant_ring, tenant)
  if is_paused(tenant) then
    redis.call('ZADD', tenant_ring, PARKED, tenant)
    return
  end
  if score and is_time(score) then return end
  local lowest = redis.call('ZRANGE', tenant_ring, 0, 0, 'WITHSCORES')[2]
  if not lowest or not is_time(lowest) then lowest = 0 end
  place_in_ring(math.floor(lowest) + stride_of(tenant), tenant)
end

-- In a queue that is never empty, the time would reach values that a score cannot tell apart. Tenants are never further
-- apart than a turn: a score that is was damaged, and its tenant goes behind the others.
local function rebase_ring()
  local lowest = redis.call('ZRANGE', tenant_ring, 0, 0, 'WITHSCORES')[2]
  if not lowest or is_parked(lowest) or tonumber(lowest) >= 0 and tonumber(lowest) < REBASE_AT then return end
  local ring, base = redis.call('ZRANGE', tenant_ring, 0, -1, 'WITHSCORES'), math.floor(lowest)
  for first = 1, #ring, 2000 do
    local places = {}
    for at = first, math.min(first + 1999, #ring), 2 do
      local time = ring[at + 1] - base
      if not is_parked(ring[at + 1]) then
        places[#places + 1] = time >= 0 and time <= 2 * STRIDE and time or 2 * STRIDE
        places[#places + 1] = ring[at]
      end
    end
    if #places > 0 then redis.call('ZADD', tenant_ring, unpack(places)) end
  end
end

-- Messages enter at the tail (LPUSH) or return to the head (RPUSH). Returns whether the list was empty.
local function push_pending(verb, tenant, messages)
  local waiting = redis.call(verb, pending_of(tenant), unpack(messages))
  if tenant ~= '' then
    redis.call('INCRBY', tenant_backlog, #messages)
    -- Also if others waited already: if somebody removed the tenant by hand, the next message repairs that.
    join_ring(tenant)
  end
  return waiting == #messages
end
