-- lib/wake.lua: wakes a consumer that waits, unless a wake-up is already there.
-- Needs  wakeup
-- Makes  silent, wake
-- The list is read where the script includes this, before it writes anything: a key of a wrong type fails there.
local silent = redis.call('LLEN', wakeup) == 0

local function wake()
  if silent then redis.call('LPUSH', wakeup, '1') end
end
