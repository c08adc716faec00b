-- seal.lua: the open claim of a consumer group is decided for good, if there is anything in it.
-- KEYS  group: what is known of the consumer group
-- ARGV  epoch: the caller's | number: of the open claim
-- Returns the number up to which claims are sealed.
local group = KEYS[1]
local epoch, number = ARGV[1], tonumber(ARGV[2])
--@include group
if number > sealed + 1 then error('OVERTAKEN: the open claim is number ' .. sealed + 1, 0) end
if number <= sealed or counted(number) == 0 then return sealed end
-- The first write is one that a server without memory accepts: what was claimed can always be handled.
redis.call('HDEL', group, 'part')
redis.call('HSET', group, 'sealed', number)
return number
