-- grow_partition.lua: gives a partition of a queue the new number of partitions, and refuses clients with another one.
-- KEYS  counted: where the number of partitions is stored | before: the state under the old number
--       meta: the state under the new number
-- ARGV  old: the number that the caller found | new
-- Returns 1 if it has changed the number, 0 if it was changed before. A repetition does nothing: no reply cache.
redis.call('HLEN', before)
redis.call('HLEN', meta)
local found = redis.call('HGET', counted, 'partitions')
if found == new then return 0 end
if found ~= old then error('PARTITIONS ' .. (found or 0) .. ' in ' .. counted, 0) end
-- In a queue without partitions `before` is `counted`. RENAME comes first: a full server refuses HSET as a first write.
redis.call('RENAME', before, meta)
redis.call('HSET', counted, 'version', 'partitions:' .. new, 'partitions', new)
redis.call('HSET', meta, 'partitions', new)
return 1
