-- lib/journal.lua: records each state change in a Redis stream, in the script that makes the change.
-- Needs  journal, meta, journaled, now
-- Makes  hex, record_event, keep_events, handler_times, write_journal
-- `meta` holds the limits of the journal (`journal_soft`, `journal_hard`), the number of its last entry
-- (`journal_serial`) and up to where it is archived (`journal_mark`).
-- All entries in one list, and where each of them ends: a table for each would cost as much as its fields.
local words, ends, filled = {}, {}, 0

local function hex(bytes)
  -- An id: at once, because a call for each of its bytes would be a third of what a published message costs.
  if #bytes == 16 then return string.format('%08x%08x%08x%08x', struct.unpack('>I4I4I4I4', bytes)) end
  return (string.gsub(bytes, '.', function(byte) return string.format('%02x', string.byte(byte)) end))
end

-- Notes what happened to a message, with more details in pairs of name and value. `write_journal` stores it.
local function record_event(event, id, tenant, ...)
  if not journaled then return end
  words[filled + 1], words[filled + 2], words[filled + 3] = event, hex(id), tenant
  filled = filled + 3
  for nth = 1, select('#', ...) do
    filled = filled + 1
    words[filled] = select(nth, ...)
  end
  ends[#ends + 1] = filled
end

-- Forgets what was recorded after the first `count` events, if a number is given. Returns how many there are.
local function keep_events(count)
  for nth = #ends, (count or #ends) + 1, -1 do ends[nth] = nil end
  filled = ends[#ends] or 0
  return #ends
end

-- Details for `record_event`: when a handler started, by the server's clock, and how many microseconds it ran. None if
-- its consumer did not say.
local function handler_times(ago, ran)
  if ran then return 'started', string.format('%.0f', now - ago), 'handled', string.format('%.0f', ran) end
end

-- The serial number of the last of `count` new entries. If the stored number is damaged, it continues from the last
-- entry: the change is made, and must not fail because of its journal.
local function next_serial(count)
  local serial = redis.pcall('HINCRBY', meta, 'journal_serial', count)
  if type(serial) == 'number' then return serial end
  local last = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1]
  serial = (last and tonumber(last[2][2]) or 0) + count
  redis.call('HSET', meta, 'journal_serial', serial)
  return serial
end

-- Above the soft limit, archived entries go. Above the hard limit others go too, and an entry says so: a reader of the
-- journal must know what is missing.
local function trim_journal()
  local soft, hard, mark = unpack(redis.call('HMGET', meta, 'journal_soft', 'journal_hard', 'journal_mark'))
  soft, hard = tonumber(soft) or 1000000, tonumber(hard) or 10000000
  if not mark then return redis.call('XTRIM', journal, 'MAXLEN', '~', soft) end
  if redis.call('XLEN', journal) > soft then redis.pcall('XTRIM', journal, 'MINID', '~', mark) end
  if redis.call('XLEN', journal) <= hard then return end
  -- An entry that somebody else added has no number.
  local first = tonumber(redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1][2][2]) or 0
  redis.call('XTRIM', journal, 'MAXLEN', hard)
  local next = tonumber(redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1][2][2]) or first
  redis.call('XADD', journal, '*', 'n', next_serial(1), 'event', 'gap', 'first', first, 'count', next - first)
end

-- The last step before the reply, so that an entry exists if and only if its change does.
local function write_journal()
  local count = #ends
  if count == 0 then return end
  local serial, at, first = next_serial(count), string.format('%.0f', now), 1
  for nth, one in ipairs(ends) do
    redis.call('XADD', journal, '*', 'n', serial - count + nth, 'at', at, 'event', words[first], 'id', words[first + 1],
      'tenant', unpack(words, first + 2, one))
    first = one + 1
  end
  if serial % 100 < count then trim_journal() end
end
