-- lib/member.lua: a message as it lies in a claim: behind its delivery count and a colon, if that is not 1.
-- No message begins with a digit, so it can be told whether there is a count.

local function as_member(stored, times)
  return times == 1 and stored or string.format('%d:', times) .. stored
end

local function stored_in(member)
  return string.byte(member, 1) >= 0x80 and member or string.match(member, '^%d+:(.*)$')
end
