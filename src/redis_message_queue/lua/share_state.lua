-- share_state.lua: gives a partition that nobody has used yet what all partitions of its queue have in common.
-- KEYS  meta | weights
-- ARGV  identity: of a new journal
--       changes...: 'meta' or 'weights', a field of it, and its value or '' to remove the field, in threes
-- Returns 1, or 0 if somebody uses the partition: then the changes are not needed. A repetition does the same.
-- The partition has no version afterwards: nobody can use it before `open_queue`, which asks the first partition.
redis.call('HLEN', weights)
if redis.call('HGET', meta, 'version') then return 0 end
redis.call('HDEL', meta, '') -- a first write that a full server accepts: see rule 2 of README.md
local tenants = 0 -- how many more are paused
for at = 1, #changes, 3 do
  local place, field, value = unpack(changes, at, at + 2)
  local key, change = place == 'weights' and weights or meta, nil
  if value == '' then change = -redis.call('HDEL', key, field) else change = redis.call('HSET', key, field, value) end
  if place == 'meta' and string.sub(field, 1, 7) == 'paused:' then tenants = tenants + change end
end
if tenants ~= 0 and redis.call('HINCRBY', meta, 'paused_tenants', tenants) < 1 then
  redis.call('HDEL', meta, 'paused_tenants')
end
if redis.call('HGET', meta, 'journal') then redis.call('HSETNX', meta, 'journal_identity', identity) end
return 1
