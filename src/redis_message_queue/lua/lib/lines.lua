-- lib/lines.lua: where messages wait: `pending` if they have no tenant, else a line of their tenant's own.
-- Given `pending`, `tenants`, `size`, `weights`, `leases`; and `line` and `returned`, what the keys of a tenant's line
-- and of its returned messages begin with.
--
-- The ring is a sorted set by virtual time: whoever is lowest has the next turn, and a turn costs UNIT over the weight.
-- Those of one time go by when they came to it: the fraction of a score counts them. A tenant is in the ring if and
-- only if messages of it wait, in its line or among those whose lease ran out. The member 'r' of `leases`, due since
-- ever, is there as long as the ring is: so a claim that finds nothing due need not look.
local UNIT = 27720 -- divided by every weight from 1 to 12 without a rest
local BEHIND = 1 / 262144 -- with this and 35 bits for the time a score is exact
local FARTHEST = 8589934592 -- then the time starts from nothing again: 300,000 rounds, and 33 of those 35 bits

local function line_of(tenant)
  return tenant == '' and pending or line .. tenant
end

-- Somebody has damaged the sum, and it follows from the lines. (UNLINK first: a server without memory accepts it.)
local function count_anew()
  local waiting = 0
  for _, tenant in ipairs(redis.call('ZRANGE', tenants, 0, -1)) do
    if tenant ~= '' then waiting = waiting + redis.call('LLEN', line .. tenant) end
  end
  redis.call('UNLINK', size)
  if waiting > 0 then redis.call('SET', size, waiting) end
end

-- A key of a wrong type, or one that has moved, fails here, before anything is written.
local function check_lines()
  redis.call('ZCARD', leases)
  redis.call('ZCARD', tenants)
  if weights then redis.call('HLEN', weights) end
  local waiting = size and redis.call('GET', size)
  if waiting and not string.match(waiting, '^%d+$') then count_anew() end
end

local function check_line(tenant)
  redis.call('LLEN', line_of(tenant))
  redis.call('ZCARD', returned .. tenant)
end

-- A weight that is none counts as one.
local function stride_of(tenant)
  local weight = redis.call('HGET', weights, tenant)
  return math.floor(UNIT / (weight and string.match(weight, '^[1-9]%d?%d?%d?$') or 1))
end

local function stand_at(time, tenant)
  local last = redis.call('ZREVRANGEBYSCORE', tenants, '(' .. time + 1, time, 'LIMIT', 0, 1, 'WITHSCORES')[2]
  redis.call('ZADD', tenants, last and last + BEHIND or time, tenant)
end

-- A newcomer comes behind all who wait for their first turn of this round, and before anyone's second: so nobody waits
-- longer than a round, and leaving and coming back gains nothing.
local function join_ring(tenant)
  redis.call('ZADD', leases, 0, 'r')
  if redis.call('ZSCORE', tenants, tenant) then return end
  local lowest = redis.call('ZRANGE', tenants, 0, 0, 'WITHSCORES')[2]
  stand_at(math.floor(lowest or 0) + stride_of(tenant), tenant)
end

local function leave_ring(tenant)
  local others = redis.call('ZCARD', tenants) > 1
  if redis.call('ZREM', tenants, tenant) == 1 and not others then redis.call('ZREM', leases, 'r') end
end

-- A queue that is never empty would come to times that a score cannot tell apart.
local function start_time_anew()
  local lowest = redis.call('ZRANGE', tenants, 0, 0, 'WITHSCORES')[2]
  if not lowest or tonumber(lowest) < FARTHEST then return end
  local ring, base = redis.call('ZRANGE', tenants, 0, -1, 'WITHSCORES'), math.floor(lowest)
  for first = 1, #ring, 2000 do
    local places = {}
    for at = first, math.min(first + 1999, #ring), 2 do
      places[#places + 1] = ring[at + 1] - base
      places[#places + 1] = ring[at]
    end
    redis.call('ZADD', tenants, unpack(places))
  end
end

-- Messages that came back are somebody's again, or gone. With its last one their tenant leaves the ring.
local function leave_returned(tenant, members)
  local last = redis.call('ZCARD', returned .. tenant) == #members and redis.call('LLEN', line_of(tenant)) == 0
  redis.call('ZREM', returned .. tenant, unpack(members))
  if last then leave_ring(tenant) end
end

-- Messages enter a line at its tail (LPUSH) or return to its head (RPUSH). Returns whether nobody had waited there.
local function enter_line(verb, tenant, messages)
  local waiting = redis.call(verb, line_of(tenant), unpack(messages))
  if tenant ~= '' then
    redis.call('INCRBY', size, #messages)
    -- Also where others waited already: what somebody has removed by hand heals with the next message.
    join_ring(tenant)
  end
  return waiting == #messages
end

-- So many have left the lines of tenants.
local function shrink(count)
  if count > 0 and redis.call('DECRBY', size, count) <= 0 then redis.call('UNLINK', size) end
end
