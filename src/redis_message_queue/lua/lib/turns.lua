-- lib/turns.lua: what a turn costs a tenant, and how many messages wait in all.
-- Needs  tenant_backlog, weights
-- Makes  stride_of, reduce_backlog
--@include places

-- An invalid weight counts as 1.
local function stride_of(tenant)
  local weight = redis.call('HGET', weights, tenant)
  return math.floor(STRIDE / (weight and string.match(weight, '^[1-9]%d?%d?%d?$') or 1))
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
