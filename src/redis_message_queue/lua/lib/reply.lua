-- lib/reply.lua: the reply cache, which makes it harmless to send a call again.
-- Given `reply`, the caller's key, and `call`, its number for this call: text of 12 digits, which compares as it is.
-- Leaves `answer`: what this very call was answered before, or nil. A call that a later one of the same caller
-- has overtaken is a straggler from a dead connection: it fails here, before it has changed anything.
local answer
local last = redis.call('GET', reply)
if last then
  local number = string.match(last, '^%d%d%d%d%d%d%d%d%d%d%d%d')
  if number == call then
    answer = string.sub(last, 13)
  elseif not number then
    error('the reply key holds a foreign value', 0)
  elseif number > call then
    error('OVERTAKEN by a later call of the same caller', 0)
  end
end
