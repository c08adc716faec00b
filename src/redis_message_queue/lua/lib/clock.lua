-- lib/clock.lua: the time of the server, in microseconds.
-- Makes  now
local now
do
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
