-- announce_worker.lua: keeps the entry of a worker until it expires, and drops entries that have expired.
-- KEYS  connected_workers
-- ARGV  keep_ms (number): how long the entry lasts
--       former: the entry that this one takes the place of, '' for none
--       running_us (number): how long the worker has run
--       idle_us (number): how long ago it claimed, -1 for never | description: JSON, '' for a worker that ends
-- Returns the entry: since when the worker runs, when it claimed last, its description; '' for a worker that ends.
-- It needs no reply cache: a repetition adds an entry of the same process, which readers merge, and which expires.
--@include clock
local function at(ago) return string.format('%.0f', now - ago) end
local entry = description ~= '' and at(running_us) .. ' ' .. (idle_us < 0 and '0' or at(idle_us)) .. ' ' .. description
local gone = redis.call('ZRANGEBYSCORE', connected_workers, '-inf', now, 'LIMIT', 0, 100)
if former ~= '' and former ~= entry then gone[#gone + 1] = former end
-- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
redis.call('ZREM', connected_workers, '')
if entry then
  redis.call('ZADD', connected_workers, now + keep_ms * 1000, entry)
  redis.call('PEXPIRE', connected_workers, keep_ms)
end
if #gone > 0 then redis.call('ZREM', connected_workers, unpack(gone)) end
return entry or ''
