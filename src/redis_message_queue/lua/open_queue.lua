-- open_queue.lua: writes what a queue must have before its first message: its version, journal and tenant weights.
-- KEYS  meta | weights
--       counted: where the number of partitions is stored (left out in a queue without partitions)
-- ARGV  drains (flag): 1 for a caller that takes messages out, and must be able to begin on a full server
--       version | version_field: see lib/state.lua; '' if more weights follow in another call
--       partitions: how many the queue has | identity: of a new journal
--       journal: '1' if the journal also holds payloads, '0' if it does not, '' for a queue without one
--       soft: the length of the journal | hard: its length with entries that no archive has read
--       changes...: tenants and their weights, in pairs
-- Returns 1. It needs no reply cache: a repetition does the same.
local found = redis.call('HGET', meta, 'version')
if found and found ~= version then error('STATEVERSION ' .. found .. ' in ' .. meta, 0) end
redis.call('HLEN', weights)
local stored = counted and redis.call('HGET', counted, 'partitions')
if stored and stored ~= partitions then error('PARTITIONS ' .. stored .. ' in ' .. counted, 0) end
if drains then redis.call('HDEL', meta, '') end -- see rule 2 of README.md
-- A client without partitions reads this version, and is refused.
if counted then redis.call('HSET', counted, 'version', 'partitions:' .. partitions, 'partitions', partitions) end
redis.call('HSETNX', meta, 'version', version)
redis.call('HSETNX', meta, 'partitions', partitions)
if journal ~= '' then
  -- Entries are numbered from 1 again after a flush. The identity tells one journal from the next.
  redis.call('HSETNX', meta, 'journal_identity', identity)
  redis.call('HSET', meta, 'journal', journal, 'journal_soft', soft, 'journal_hard', hard)
end
for at = 1, #changes, 2 do
  if changes[at + 1] == '1' then -- the weight of a tenant that is not listed
    redis.call('HDEL', weights, changes[at])
  else
    redis.call('HSET', weights, changes[at], changes[at + 1])
  end
end
-- Last: a client that finds this field finds everything else.
if version_field ~= '' then redis.call('HSETNX', meta, version_field, version) end
return 1
