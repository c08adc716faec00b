-- lib/group.lua: the progress of a consumer group, for the query that holds it.
-- Needs  group, epoch, query
-- Makes  progress, size_of
-- A query that lost its group to another one fails here, before it changes anything. `query` is its name as the holder:
-- on a server that was flushed, or restored from an older state, another one may have the same epoch.
-- A claim is `sealed` when its messages are final, `acked` when Spark is done with them, `cleared` when they are
-- removed; each number stands for all below it. An operator `released` claims up to a number; `releasing` is the next
-- one, from the highest down.
local progress = {}
do
  local fields = {'epoch', 'holder', 'sealed', 'acked', 'cleared', 'released', 'releasing'}
  local state = redis.call('HMGET', group, unpack(fields))
  if state[1] ~= epoch or state[2] ~= query then
    error('STALE epoch ' .. epoch .. ' of a consumer group that is at epoch ' .. (state[1] or 0), 0)
  end
  for place = 3, #fields do
    local number = state[place] or '0'
    if not string.match(number, '^%d+$') then error('the group holds a foreign value', 0) end
    progress[fields[place]] = tonumber(number)
  end
end

-- How many messages a claim holds, how many of them have an entry in `deliveries`, and how many bytes the largest has.
local function size_of(number)
  local count, known, widest = string.match(redis.call('HGET', group, number) or '0:0:0', '^(%d+):(%d+):(%d+)$')
  if not count then error('the group holds a foreign value', 0) end
  return tonumber(count), tonumber(known), tonumber(widest)
end
