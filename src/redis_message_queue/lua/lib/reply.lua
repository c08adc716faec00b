-- lib/reply.lua: the reply cache, which makes it harmless to send a call again.
-- Given `reply`, the caller's key, and `call`, its number for this call: text of 12 digits, which compares as it is.
-- Leaves `answer`: what this very call was answered before, or nil. A call that a later one of the same caller
-- has overtaken is a straggler from a dead connection: it fails here, before it has changed anything. A value that is
-- not ours says nothing, and is overwritten.
local answer
local last = redis.call('GET', reply)
local number = last and string.match(last, '^%d%d%d%d%d%d%d%d%d%d%d%d')
if number == call then
  answer = string.sub(last, 13)
elseif number and number > call then
  error('OVERTAKEN by a later call of the same caller', 0)
end
