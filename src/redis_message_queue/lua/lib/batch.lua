-- lib/batch.lua: the messages in a claim of a consumer group.
-- Needs  group, groups, whose, progress
-- Makes  to_member, from_member, count_members
-- A member is a message, behind its delivery count and a colon if the count is not 1. No message begins with a digit.

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

-- A claim now holds `count` messages, `known` of them with an entry, the largest with `widest` bytes: `change` more
-- than before, or fewer.
local function count_members(number, count, known, widest, change)
  if count > 0 then
    redis.call('HSET', group, number, string.format('%d:%d:%d', count, known, widest))
  else
    redis.call('HDEL', group, number)
  end
  for _, field in ipairs({whose, ''}) do
    local counted = redis.pcall('HINCRBY', groups, field, change)
    if type(counted) ~= 'number' or counted < 0 or counted > 1e15 then return recount_members() end
  end
end
