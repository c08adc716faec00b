-- seal_batch.lua: makes the open claim of a consumer group final, if it holds anything.
-- KEYS  group
-- ARGV  query: who calls | epoch: the caller's | number (number): of the open claim
--       part (number): how many calls have filled that claim | slices (number): in how many slices tasks read it
-- Returns the number up to which claims are sealed.
--@include group
local sealed = progress.sealed
if number > sealed + 1 then error('OVERTAKEN: the open claim is number ' .. sealed + 1, 0) end
if number <= sealed or batch.places == 0 then return sealed end
-- A repetition that arrives late must not seal what the caller has filled since.
local last_part = tonumber(string.match(stored_part, '^%d+'))
if not last_part then error('the group holds a foreign value', 0) end
if part < last_part then return sealed end
-- First a write that a full server accepts: see rule 2 of README.md.
redis.call('HDEL', group, 'part')
-- From now on every replay reads the same slices, whatever its own options say.
batch.slices = slices
redis.call('HSET', group, 'sealed', number, number, encode_batch(batch))
return number
