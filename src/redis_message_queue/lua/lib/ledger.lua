-- lib/ledger.lua: attempts, delivery count and failures of a message, as the deliveries hash keeps them.
-- Attempts are all deliveries; the delivery count is what the limit counts: failures under a retry policy are counted
-- by themselves.

-- Most messages are delivered once and never get an entry: `usual` is what the first two numbers are then,
-- 0 for a message in the line and 1 for one in flight. Last, whether the entry is damaged and says nothing.
local function read_entry(deliveries, id, stored, usual)
  local entry = has_entry(stored) and redis.call('HGET', deliveries, id)
  if not entry then return usual, usual, 0, false end
  local attempts, count, failures = string.match(entry, '^(%d+):(%d+):?(%d*)$')
  if not attempts then return usual, usual, 0, true end
  return tonumber(attempts), tonumber(count), tonumber(failures) or 0, false
end

local function write_entry(attempts, count, failures)
  if failures == 0 then return string.format('%d:%d', attempts, count) end
  return string.format('%d:%d:%d', attempts, count, failures)
end
