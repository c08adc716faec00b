-- lib/in_flight.lua: how many messages of each tenant are in flight, in a queue that limits them.
-- Needs  tenant_in_flight, tenant_ring, counts
-- Makes  flight_of, count_in_flight, leave_flight
-- `tenant_in_flight` has a member for each message of a tenant in `processing`, also if its lease has ended: the length
-- of the tenant in one byte, the tenant and the id. All have the score 0, so those of a tenant are next to each other.
-- Messages that were claimed before anybody had a limit are missing there, and nothing happens when they leave.
--@include places

local function flight_of(tenant, id)
  return string.char(#tenant) .. tenant .. id
end

local function count_in_flight(tenant)
  local first = flight_of(tenant, '')
  return redis.call('ZLEXCOUNT', tenant_in_flight, '[' .. first, '(' .. first .. string.rep('\255', 17))
end

-- The tenant had no turns because of its limit: it goes on where it was, but not behind the others, so that it has not
-- saved turns, and not far before them: virtual time may have started again.
local function unpark(tenant, score)
  local time, lowest = math.floor(score - AT_LIMIT), redis.call('ZRANGE', tenant_ring, 0, 0, 'WITHSCORES')[2]
  if tonumber(lowest) < PARKED then
    lowest = math.max(math.floor(lowest), 0)
    time = time > lowest + STRIDE and lowest + STRIDE or math.max(time, lowest)
  end
  place_in_ring(time, tenant)
end

-- Messages of a tenant have left `processing`. Returns whether others of it can have turns because of that. The script
-- may have emptied both keys before: in a slot that is leaving its node, an error means empty.
local function leave_flight(tenant, left_ids)
  if not counts or tenant == '' or #left_ids == 0 then return false end
  if type(redis.pcall('ZCARD', tenant_in_flight)) == 'number' then
    local flights = {}
    for place, id in ipairs(left_ids) do flights[place] = flight_of(tenant, id) end
    redis.call('ZREM', tenant_in_flight, unpack(flights))
  end
  local score = tonumber(redis.pcall('ZSCORE', tenant_ring, tenant))
  if not score or score >= 2 * PARKED then return false end
  -- A message that came meanwhile may have brought it back, and woken nobody: there was no room for it.
  if score < AT_LIMIT then return score < PARKED end
  unpark(tenant, score)
  return true
end
