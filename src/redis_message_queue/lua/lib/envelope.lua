-- lib/envelope.lua: what envelope.py packs: flags (1 byte), id (16), time (8), [length and tenant], payload.
-- The flags are 0x80, which no text begins with, plus 1 with a tenant, plus 2 once the message has an entry in the
-- deliveries hash.

-- The time's first byte is 0 for some thousand years to come, and rarely so in bytes that are not ours.
local function is_message(stored)
  local flags, century, length = string.byte(stored, 1), string.byte(stored, 18), string.byte(stored, 26)
  if #stored < 25 or century ~= 0 or flags < 0x80 or flags > 0x83 then return false end
  return flags % 2 == 0 or (length ~= nil and #stored >= 26 + length)
end

local function id_of(stored)
  return string.sub(stored, 2, 17)
end

local function payload_of(stored)
  local start = 26
  if string.byte(stored, 1) % 2 == 1 then start = start + 1 + string.byte(stored, 26) end
  return string.sub(stored, start)
end

local function has_entry(stored)
  return string.byte(stored, 1) % 4 >= 2
end

local function with_entry(stored)
  if has_entry(stored) then return stored end
  return string.char(string.byte(stored, 1) + 2) .. string.sub(stored, 2)
end
