-- lib/check_types.lua: fails if a key has the wrong type or has moved, before the script writes anything.
-- Makes  check_types

-- The command is one that reads keys of the right type: LLEN, HLEN or ZCARD.
local function check_types(command, ...)
  for _, key in ipairs({...}) do redis.call(command, key) end
end
