-- notify.lua: wakes the next consumer that waits, unless a wake-up is already there.
-- KEYS  wakeup
-- Returns 1 if it left a wake-up, 0 if there was one.
if redis.call('LLEN', wakeup) > 0 then return 0 end
-- First a write that a full server accepts: see rule 2 of README.md. It removes nothing, because the list is empty.
redis.call('UNLINK', wakeup)
return redis.call('LPUSH', wakeup, '1')
