-- lib/group.lua: how far a consumer group has come, asked by the one who holds it.
-- Given `group`, its key, and `epoch`, the caller's. Whoever another one has taken the group over from fails here,
-- before it has changed anything. A claim is `sealed` when its messages are decided for good, `acked` when Spark is
-- done with them, `cleared` when they are gone; each of these numbers stands for all before it. What was `released`
-- by an operator is nobody's claim any more; `releasing` is where that has come to, from the highest number down.
local state =
  redis.call('HMGET', group, 'epoch', 'sealed', 'acked', 'cleared', 'released', 'releasing')
if state[1] ~= epoch then
  error('STALE epoch ' .. epoch .. ' of a consumer group that is at epoch ' .. (state[1] or 0), 0)
end
for place = 2, 6 do
  if state[place] and not string.match(state[place], '^%d+$') then error('the group holds a foreign value', 0) end
end
local sealed, acked, cleared = tonumber(state[2] or 0), tonumber(state[3] or 0), tonumber(state[4] or 0)

-- How many messages lie in a claim, and how many of them have an entry in the deliveries hash.
local function counted(number)
  local count, known = string.match(redis.call('HGET', group, number) or '0:0', '^(%d+):(%d+)$')
  if not count then error('the group holds a foreign value', 0) end
  return tonumber(count), tonumber(known)
end

-- So many messages have entered (or, less than none, have left) a claim that then holds `count`.
local function count_members(number, count, known, entered)
  if count > 0 then
    redis.call('HSET', group, number, string.format('%d:%d', count, known))
  else
    redis.call('HDEL', group, number)
  end
  redis.call('HINCRBY', groups, whose, entered)
  redis.call('HINCRBY', groups, '', entered)
end
