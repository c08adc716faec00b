-- lib/batch.lua: the messages in a claim of a consumer group.
-- Needs  group, groups, whose, progress, encode_batch
-- Makes  EMPTY, to_member, from_member, write_batch
-- A member is a message, behind its delivery count and a colon if the count is not 1. No message begins with a digit.
-- A message that was rejected leaves an empty place, so that no other one changes its slice.
local EMPTY = '-'

local function to_member(stored, times)
  return times == 1 and stored or string.format('%d:', times) .. stored
end

-- Returns nil, or bytes that are no message, for a member that is not ours.
local function from_member(member)
  return (string.byte(member, 1) or 0) >= 0x80 and member or string.match(member, '^%d+:(.*)$')
end

-- Somebody damaged a number in `groups`: count the messages in the claims of this group, then those of all groups.
local function recount_members()
  local own, total = 0, 0
  for number = progress.cleared + 1, progress.sealed + 1 do
    own = own + (tonumber(string.match(redis.call('HGET', group, number) or '', '^(%d+):')) or 0)
  end
  redis.call('HSET', groups, whose, own, '', 0)
  for _, count in ipairs(redis.call('HVALS', groups)) do
    total = total + (tonumber(string.match(count, '^%d+$')) or 0)
  end
  redis.call('HSET', groups, '', string.format('%d', total))
end

-- Keeps what a claim holds now: `change` messages more than before, or fewer.
local function write_batch(number, now_held, change)
  if now_held.messages + now_held.empty > 0 then
    redis.call('HSET', group, number, encode_batch(now_held))
  else
    redis.call('HDEL', group, number)
  end
  for _, field in ipairs({whose, ''}) do
    local counted = redis.pcall('HINCRBY', groups, field, change)
    if type(counted) ~= 'number' or counted < 0 or counted > 1e15 then return recount_members() end
  end
end
