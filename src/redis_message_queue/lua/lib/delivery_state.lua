-- lib/delivery_state.lua: reads and writes the attempts, delivery count and failures of a message.
-- Needs  deliveries
-- Makes  read_entry, write_entry, NOBODY
-- Attempts are all deliveries. The delivery count is compared with the limit: it leaves out failures under a retry
-- policy, which have their own number.
-- A lease whose member ends with NOBODY holds the place of a message that waits for its next attempt, in a queue with
-- `ordered_tenants`. It has the number 0 where a token has that of its claim, so it is the token of no claim.
--@include envelope
local NOBODY = string.rep('\0', 5)

-- Most messages are delivered once and never get an entry: the first two numbers are `default_count` then, 0 for a
-- message that waits and 1 for one in flight. The last value tells whether the entry is damaged.
local function read_entry(id, stored, default_count)
  local entry = has_entry(stored) and redis.call('HGET', deliveries, id)
  if not entry then return default_count, default_count, 0, false end
  local attempts, count, failures = string.match(entry, '^(%d+):(%d+):?(%d*)$')
  if not attempts then return default_count, default_count, 0, true end
  return tonumber(attempts), tonumber(count), tonumber(failures) or 0, false
end

local function write_entry(attempts, count, failures)
  if failures == 0 then return string.format('%d:%d', attempts, count) end
  return string.format('%d:%d:%d', attempts, count, failures)
end
