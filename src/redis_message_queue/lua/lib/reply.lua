-- lib/reply.lua: the reply cache, which makes it safe to send a call again.
-- Needs  reply, call
-- Makes  answer
-- `call` is the caller's number for this call: text of 12 digits, which compares as it is. `answer` is what this very
-- call was answered before, or nil; the script keeps a new answer for `keep_ms`. A call that was overtaken by a later
-- one of the same caller comes from a dead connection: it fails here, before it changes anything. A value that is not
-- ours is ignored, and overwritten later.
local answer
do
  local last = redis.call('GET', reply)
  local number = last and string.sub(last, 1, 12)
  if number == call then
    answer = string.sub(last, 13)
  elseif number and number > call and string.match(number, '^%d%d%d%d%d%d%d%d%d%d%d%d$') then
    error('OVERTAKEN by a later call of the same caller', 0)
  end
end
