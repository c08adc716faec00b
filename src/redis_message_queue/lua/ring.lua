-- ring.lua: leave a token for the next waiter, if none lies there.
-- KEYS  bell: a token if there is work
-- Returns 1 if it rang, 0 if a token lay there.
if redis.call('LLEN', KEYS[1]) > 0 then return 0 end
return redis.call('LPUSH', KEYS[1], '1')
