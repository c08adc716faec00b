-- lib/envelope.lua: the parts of a stored message, as stored/envelope.py packs them.
-- Makes  is_message, id_of, time_of, payload_of, tenant_of, extras_text, extras_of, has_entry, with_entry, has_outlived
-- Flags, id, time, [tenant], [extras], [ttl], payload: one byte of flags, 16 of id, 8 of time; one byte of length
-- before a tenant, two before extras. The flags are 0x80, which no text begins with, plus 1 with a tenant, plus 2 if
-- the message has an entry in `deliveries`, plus 4 with extras, a small JSON object that travels with the payload, plus
-- 8 with a time to live: 8 bytes of microseconds from the time of publication.

-- Where the payload begins, or nil if the bytes end before it.
local function payload_at(stored)
  local flags, at = string.byte(stored, 1), 26
  if flags % 2 == 1 then at = at + 1 + (string.byte(stored, at) or #stored) end
  if flags % 8 >= 4 then
    local high, low = string.byte(stored, at, at + 1)
    at = at + 2 + (low and high * 256 + low or #stored)
  end
  if flags % 16 >= 8 then at = at + 8 end
  return at <= #stored + 1 and at or nil
end

-- The time's first byte is 0 for some thousand years to come, and rarely so in bytes that are not ours.
local function is_message(stored)
  local flags, century = string.byte(stored, 1), string.byte(stored, 18)
  if #stored < 25 or century ~= 0 or flags < 0x80 or flags > 0x8f then return false end
  return payload_at(stored) ~= nil
end

local function id_of(stored)
  return string.sub(stored, 2, 17)
end

local function time_of(stored)
  return struct.unpack('>I8', string.sub(stored, 18, 25))
end

local function payload_of(stored)
  return string.sub(stored, payload_at(stored))
end

-- '' for a message without a tenant.
local function tenant_of(stored)
  if string.byte(stored, 1) % 2 == 0 then return '' end
  return string.sub(stored, 27, 26 + string.byte(stored, 26))
end

-- '' for a message without extras.
local function extras_text(stored)
  local flags, at = string.byte(stored, 1), 26
  if flags % 8 < 4 then return '' end
  if flags % 2 == 1 then at = at + 1 + string.byte(stored, at) end
  local high, low = string.byte(stored, at, at + 1)
  return string.sub(stored, at + 2, at + 1 + high * 256 + low)
end

-- Empty for a message without extras, or with extras that are not a JSON object.
local function extras_of(stored)
  local text = extras_text(stored)
  if text == '' then return {} end
  local is_json, extras = pcall(cjson.decode, text)
  return is_json and type(extras) == 'table' and extras or {}
end

-- Whether it has a time to live of its own, and that has ended.
local function has_outlived(stored, now_us)
  if string.byte(stored, 1) % 16 < 8 then return false end
  local at = payload_at(stored)
  return time_of(stored) + struct.unpack('>I8', string.sub(stored, at - 8, at - 1)) <= now_us
end

local function has_entry(stored)
  return string.byte(stored, 1) % 4 >= 2
end

local function with_entry(stored)
  if has_entry(stored) then return stored end
  return string.char(string.byte(stored, 1) + 2) .. string.sub(stored, 2)
end
