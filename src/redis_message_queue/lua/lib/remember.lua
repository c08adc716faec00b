-- lib/remember.lua: stores what a call was answered, as the last step of its script.
-- Needs  reply, keep_ms, call
-- Makes  remember
-- The fast paths do it themselves: to make this function costs them 0.1 to 0.3 µs.
local function remember(result)
  redis.call('PSETEX', reply, keep_ms, call .. result)
  return result
end
