-- lib/turns.lua: what a turn costs a tenant, and where it stands in the ring afterwards.
-- Needs  tenant_ring, tenant_backlog, weights
-- Makes  STRIDE, REBASE_AT, PARKED, PAUSED, is_parked, stride_of, place_in_ring, reduce_backlog
-- The ring is a sorted set by virtual time: the tenant with the lowest score has the next turn, and a turn moves it on
-- by its stride, STRIDE divided by its weight. The fraction of a score orders tenants that have the same time.
-- A tenant that must not have a turn is parked: it stays in the ring, behind all times, so that the ring still tells
-- who has messages waiting. `meta` has a field for each paused tenant, PAUSED and its name.
local STRIDE = 27720 -- every weight from 1 to 12 divides it
local BEHIND = 1 / 262144 -- with this and 35 bits for the time a score is exact
local REBASE_AT = 8589934592 -- here the time starts at 0 again: after 300,000 rounds, with 33 of those 35 bits
local PARKED = 1099511627776 -- 2 ^ 40: no time reaches it
local PAUSED = 'paused:'

-- A score beyond that was damaged: its tenant is not parked.
local function is_parked(score)
  return tonumber(score) >= PARKED and tonumber(score) < 2 * PARKED
end

-- An invalid weight counts as 1.
local function stride_of(tenant)
  local weight = redis.call('HGET', weights, tenant)
  return math.floor(STRIDE / (weight and string.match(weight, '^[1-9]%d?%d?%d?$') or 1))
end

-- Behind all others that have this time.
local function place_in_ring(time, tenant)
  local last = redis.call('ZREVRANGEBYSCORE', tenant_ring, '(' .. time + 1, time, 'LIMIT', 0, 1, 'WITHSCORES')[2]
  redis.call('ZADD', tenant_ring, last and last + BEHIND or time, tenant)
end

-- So many messages have left the lists of tenants. A damaged number is repaired by `check_queues`.
local function reduce_backlog(count)
  if count == 0 then return end
  local waiting = redis.pcall('DECRBY', tenant_backlog, count)
  if type(waiting) == 'number' then
    if waiting <= 0 then redis.call('UNLINK', tenant_backlog) end
  elseif string.find(waiting.err, 'permission', 1, true) or string.find(waiting.err, "can't run", 1, true) then
    redis.call('DECRBY', tenant_backlog, count) -- fails again: a number that only grows would refuse publishes one day
  end
end
