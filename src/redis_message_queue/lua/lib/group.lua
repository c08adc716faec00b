-- lib/group.lua: the progress of a consumer group, for the query that holds it.
-- Needs  group, epoch, query, number
-- Makes  progress, batch_of, encode_batch, batch, stored_part
-- A query that lost its group to another one fails here, before it changes anything. `query` is its name as the holder:
-- on a server that was flushed, or restored from an older state, another one may have the same epoch.
-- A claim is `sealed` when its messages are final, `acked` when Spark is done with them, `cleared` when they are
-- removed; each number stands for all below it. An operator `released` claims up to a number; `releasing` is the next
-- one, from the highest down. `batch` is the claim that the caller names, and `stored_part` says which call filled the
-- open one last.
local progress, batch, stored_part = {}, nil, nil

-- What a claim holds, as the group keeps it: how many messages, how many places whose message was rejected, how many
-- slices tasks read it in (0 until it is sealed), how many messages have an entry in `deliveries`, and how many bytes
-- the largest has. Messages and rejected ones are the places of its list.
local function read_batch(stored)
  local messages, empty, slices, known, widest =
    string.match(stored or '0:0:0:0:0', '^(%d+):(%d+):(%d+):(%d+):(%d+)$')
  if not messages then error('the group holds a foreign value', 0) end
  return {messages = tonumber(messages), empty = tonumber(empty), places = messages + empty, slices = tonumber(slices),
    known = tonumber(known), widest = tonumber(widest)}
end

local function encode_batch(one)
  return string.format('%d:%d:%d:%d:%d', one.messages, one.empty, one.slices, one.known, one.widest)
end

do
  local fields = {'epoch', 'holder', 'sealed', 'acked', 'cleared', 'released', 'releasing', 'part', number}
  local state = redis.call('HMGET', group, unpack(fields))
  if state[1] ~= epoch or state[2] ~= query then
    error('STALE epoch ' .. epoch .. ' of a consumer group that is at epoch ' .. (state[1] or 0), 0)
  end
  for place = 3, 7 do
    local value = state[place] or '0'
    if not string.match(value, '^%d+$') then error('the group holds a foreign value', 0) end
    progress[fields[place]] = tonumber(value)
  end
  stored_part, batch = state[8] or '0:0:0', read_batch(state[9])
end

local function batch_of(one)
  return one == number and batch or read_batch(redis.call('HGET', group, one))
end
