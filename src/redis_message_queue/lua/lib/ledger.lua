-- lib/ledger.lua: lease number, delivery count and failures of a message, as the deliveries hash keeps them.

-- Most messages are delivered once and never get an entry: `usual` is what the first two numbers are then,
-- 0 for a message in the line and 1 for one in flight.
local function read_entry(deliveries, id, stored, usual)
  local entry = has_entry(stored) and redis.call('HGET', deliveries, id)
  if not entry then return usual, usual, 0 end
  local lease, count, failures = string.match(entry, '^(%d+):(%d+):?(%d*)$')
  if not lease then error('the deliveries hash holds a foreign value', 0) end
  return tonumber(lease), tonumber(count), tonumber(failures) or 0
end

local function write_entry(lease, count, failures)
  if failures == 0 then return string.format('%d:%d', lease, count) end
  return string.format('%d:%d:%d', lease, count, failures)
end
