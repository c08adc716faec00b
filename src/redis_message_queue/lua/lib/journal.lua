-- lib/journal.lua: each change of state becomes an entry of a stream, in the script that makes the change.
-- Given `journal`, the stream, and `meta`, a hash: the `version` of everything that is stored, and of the journal what
-- it tells (`journal`), its limits (`journal_soft`, `journal_hard`), the number of its last entry (`journal_serial`)
-- and up to where it is archived (`journal_mark`). A queue has a journal if and only if it has the first of these, so
-- that everybody who works with the queue writes it, whatever his own options are.
local journaled, told -- '1' if payloads are told too, '0' if not, nil without a journal; and what is to be told
local function open_journal()
  local known = redis.call('HMGET', meta, 'version', 'journal')
  if not known[1] then error('NOSTATE in ' .. meta, 0) end -- the first contact, or somebody has flushed the server
  if known[1] ~= '1' then error('STATEVERSION ' .. known[1] .. ' in ' .. meta, 0) end
  journaled, told = known[2] or nil, {}
  if journaled then redis.call('XLEN', journal) end -- a key of a wrong type fails here
end
open_journal()

local function hex(bytes)
  return (string.gsub(bytes, '.', function(byte) return string.format('%02x', string.byte(byte)) end))
end

-- What happened to which message, and more of it in pairs of name and value. It is written at the end.
local function tell(event, id, tenant, ...)
  if journaled then told[#told + 1] = {'event', event, 'id', hex(id), 'tenant', tenant, ...} end
end

-- The serial number of the last of `count` new entries. A damaged number goes on from the last entry that is there:
-- the change has been made, and must not fail for what is told of it.
local function next_serial(count)
  local serial = redis.pcall('HINCRBY', meta, 'journal_serial', count)
  if type(serial) == 'number' then return serial end
  local last = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1]
  serial = (last and tonumber(last[2][2]) or 0) + count
  redis.call('HSET', meta, 'journal_serial', serial)
  return serial
end

-- What is archived goes when there is more than the queue wants to keep. What is not goes only beyond the hard limit,
-- and that becomes an entry too: whoever reads the journal must know what it does not know.
local function trim_journal()
  local soft, hard, mark = unpack(redis.call('HMGET', meta, 'journal_soft', 'journal_hard', 'journal_mark'))
  soft, hard = tonumber(soft) or 1000000, tonumber(hard) or 10000000
  if not mark then return redis.call('XTRIM', journal, 'MAXLEN', '~', soft) end
  if redis.call('XLEN', journal) > soft then redis.pcall('XTRIM', journal, 'MINID', '~', mark) end
  if redis.call('XLEN', journal) <= hard then return end
  local first = redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1][2][2]
  redis.call('XTRIM', journal, 'MAXLEN', hard)
  local next = redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1][2][2]
  redis.call('XADD', journal, '*', 'n', next_serial(1), 'event', 'gap', 'first', first, 'count', next - first)
end

-- The last step but the reply.
local function write_journal(now)
  if #told == 0 then return end
  local serial, at = next_serial(#told), string.format('%.0f', now)
  for nth, one in ipairs(told) do
    redis.call('XADD', journal, '*', 'n', serial - #told + nth, 'at', at, unpack(one))
  end
  if serial % 100 < #told then trim_journal() end
end
