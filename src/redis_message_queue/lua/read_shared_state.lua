-- read_shared_state.lua: reads what the partitions of a queue have in common: pauses, rules of the journal, weights.
-- KEYS  meta | weights | counted: where the number of partitions is stored
-- ARGV  place: 'meta' or 'weights', where to look | cursor: '0' to begin
-- Returns {partitions, version, cursor, field, value, ...}
--       partitions: how many the queue has, as this partition knows it, '' if it does not | version: '' if nobody has
--       used this partition yet | cursor: where to continue, '0' at the end
local partitions = redis.call('HGET', counted, 'partitions') or ''
local version = redis.call('HGET', meta, 'version') or ''
local scanned = redis.call('HSCAN', place == 'meta' and meta or weights, cursor, 'COUNT', 1000)
local shared = {paused = true, journal = true, journal_soft = true, journal_hard = true}
local result = {partitions, version, scanned[1]}
for at = 1, #scanned[2], 2 do
  local field, value = scanned[2][at], scanned[2][at + 1]
  if place == 'weights' or shared[field] or string.sub(field, 1, 7) == 'paused:' then
    result[#result + 1] = field
    result[#result + 1] = value
  end
end
return result
