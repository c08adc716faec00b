-- lib/reply.lua: the reply cache, which makes it harmless to send a call again.

-- The answer that this very call was given before, or nil. A call that a later one of the same caller has
-- overtaken is a straggler from a dead connection: it fails here, before it has changed anything.
local function remembered(reply, call)
  local last = redis.call('GET', reply)
  if not last then return nil end
  local cut = string.find(last, ':', 1, true)
  local number = cut and tonumber(string.sub(last, 1, cut - 1))
  if not number then error('the reply key ' .. reply .. ' holds a foreign value', 0) end
  if number > call then error('OVERTAKEN by a later call of the same caller', 0) end
  return number == call and string.sub(last, cut + 1) or nil
end

local function remember(reply, call, answer, keep_ms)
  redis.call('SET', reply, call .. ':' .. answer, 'PX', keep_ms)
end
