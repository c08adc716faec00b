-- lib/held.lua: the messages that a caller says it holds.
-- Given `whom`, their ids, and `numbers`, their lease numbers, as in the headers of the scripts.
if #whom > 16000 then error('at most 1,000 messages in one call', 0) end
local ids, lease_numbers = {}, {}
for at = 1, #whom, 16 do ids[#ids + 1] = string.sub(whom, at, at + 15) end
for number in string.gmatch(numbers, '%d+') do lease_numbers[#lease_numbers + 1] = tonumber(number) end

local function lease_number(nth)
  return lease_numbers[nth] or 1
end
