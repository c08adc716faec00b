-- lib/plain.lua: reads the head of a list as long as its messages are plain.
-- Needs  now, ttl_us, largest
-- Makes  read_plain
-- A message is plain if it was never delivered, has no extras and is not too old. Most claims meet no other, and cost
-- half as much that way. (See lib/envelope.lua for the bytes.)
--@include bounded
local byte = string.byte
local function is_plain(stored, flags)
  return byte(stored, 1) == flags and byte(stored, 18) == 0 and #stored >= 25
    and (flags == 0x80 or #stored >= 26 + (byte(stored, 26) or #stored))
    and (ttl_us == 0 or struct.unpack('>I8', string.sub(stored, 18, 25)) + ttl_us > now)
end

-- Returns at most `count` messages, whether it met no other kind, how many bytes they have, and the largest of them.
-- `flags` is the first byte of a plain message in this list: 0x80, or 0x81 with a tenant.
local function read_plain(key, flags, count)
  if count == 1 then
    local stored = redis.call('LINDEX', key, -1)
    if not stored then return {}, true, 0, 0 end
    if not is_plain(stored, flags) then return {}, false, 0, 0 end
    return {stored}, true, #stored, #stored
  end
  local budget, messages, taken = new_budget(largest), {}, 0
  while taken < count and not budget.is_spent() do
    local wanted = budget.next_piece(count - taken)
    local head, bytes, widest, all_plain = redis.call('LRANGE', key, -taken - wanted, -taken - 1), 0, 0, true
    for place = #head, 1, -1 do
      local stored = head[place]
      all_plain = is_plain(stored, flags)
      if not all_plain then break end
      local size = #stored
      bytes = bytes + size
      if size > widest then widest = size end
      taken = taken + 1
      messages[taken] = stored
    end
    budget.count_all(bytes, widest)
    if not all_plain then return messages, false, budget.bytes(), budget.widest() end
    if #head < wanted then break end
  end
  return messages, true, budget.bytes(), budget.widest()
end
