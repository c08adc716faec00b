-- grow_partition.lua: gives a partition of a queue the new number of partitions, and refuses clients with another one.
-- KEYS  counted: where the number of partitions is stored | before: the state under the old number
--       meta: the state under the new number
-- ARGV  version: of the state | old: the number that the caller found | new (number)
-- Returns 1 if it has changed the number, 0 if it was changed before. A repetition does nothing: no reply cache.
--       A number that is larger than the new one, or that the caller has not seen, is refused: it never goes down.
local state = redis.call('HGET', before, 'version')
redis.call('HLEN', meta)
local found = redis.call('HGET', counted, 'partitions')
local number = tonumber(found) or 0
if number == new then return 0 end
if number > new or found ~= old then error('PARTITIONS ' .. number .. ' in ' .. counted, 0) end
if state and state ~= version then error('STATEVERSION ' .. state .. ' in ' .. before, 0) end
-- In a queue without partitions `before` is `counted`. RENAME comes first: a full server refuses HSET as a first write.
if state then redis.call('RENAME', before, meta) else redis.call('HDEL', counted, '') end
redis.call('HSET', counted, 'version', 'partitions:' .. new, 'partitions', new)
if state then redis.call('HSET', meta, 'partitions', new) end
return 1
