-- lib/places.lua: where a tenant stands in the ring.
-- Needs  tenant_ring
-- Makes  STRIDE, REBASE_AT, PARKED, AT_LIMIT, PAUSED, is_parked, place_in_ring
-- The ring is a sorted set by virtual time: the tenant with the lowest score has the next turn, and a turn moves it on
-- by its stride, STRIDE divided by its weight. The fraction of a score orders tenants that have the same time.
-- A tenant that must not have a turn is parked: it stays in the ring, behind all times, so that the ring still tells
-- who has messages waiting. `meta` has a field for each paused tenant, PAUSED and its name. A tenant that has as many
-- messages in flight as it may is parked at its time plus AT_LIMIT.
local STRIDE = 27720 -- every weight from 1 to 12 divides it
local BEHIND = 1 / 262144 -- with this and 35 bits for the time a score is exact
local REBASE_AT = 8589934592 -- here the time starts at 0 again: after 300,000 rounds, with 33 of those 35 bits
local PARKED = 1099511627776 -- 2 ^ 40: no time reaches it
local AT_LIMIT = 1649267441664 -- a half more
local PAUSED = 'paused:'

-- A score beyond that was damaged: its tenant is not parked.
local function is_parked(score)
  return tonumber(score) >= PARKED and tonumber(score) < 2 * PARKED
end

-- Behind all others that have this time.
local function place_in_ring(time, tenant)
  local last = redis.call('ZREVRANGEBYSCORE', tenant_ring, '(' .. time + 1, time, 'LIMIT', 0, 1, 'WITHSCORES')[2]
  redis.call('ZADD', tenant_ring, last and last + BEHIND or time, tenant)
end
