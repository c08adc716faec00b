-- lib/ledger.lua: lease number and delivery count of a message, as the deliveries hash keeps them.

-- Most messages are delivered once and never get an entry: `usual` is what both numbers are then,
-- 0 for a message in the line and 1 for one in flight.
local function read_entry(deliveries, id, stored, usual)
  local entry = has_entry(stored) and redis.call('HGET', deliveries, id)
  if not entry then return usual, usual end
  local lease, count = string.match(entry, '^(%d+):(%d+)$')
  if not lease then error('the deliveries hash holds a foreign value', 0) end
  return tonumber(lease), tonumber(count)
end

local function write_entry(lease, count)
  return string.format('%d:%d', lease, count)
end
