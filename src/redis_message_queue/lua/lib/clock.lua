-- lib/clock.lua: the server's clock, the only one that deadlines and ages are measured with.

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
