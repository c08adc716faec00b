-- lib/journal.lua: each change of state becomes an entry of a stream, in the script that makes the change.
-- Given `journal`, the stream, and `journal_state`, a hash: its rules ('payload', 'soft', 'hard'), the 'serial' number of
-- the last entry, and the 'mark' up to which it is archived. A queue has a journal if and only if it has this hash, so
-- that everybody who works with the queue writes it, whatever his own options are.
local journaled, told -- '1' if payloads are told too, '0' if not, nil without a journal; and what is to be told
local function open_journal()
  journaled, told = redis.call('HGET', journal_state, 'payload') or nil, {}
  if journaled then redis.call('XLEN', journal) end -- a key of a wrong type fails here
end
open_journal()

-- What happened to which message, and more of it in pairs of name and value. It is written at the end.
local function tell(event, id, tenant, ...)
  if not journaled then return end
  local hex = string.gsub(id, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
  told[#told + 1] = {'event', event, 'id', hex, 'tenant', tenant, ...}
end

-- What is archived goes when there is more than the queue wants to keep. What is not goes only beyond the hard limit,
-- and that becomes an entry too: whoever reads the journal must know what it does not know.
local function trim_journal(serial)
  local soft, hard, mark = unpack(redis.call('HMGET', journal_state, 'soft', 'hard', 'mark'))
  if not mark then return redis.call('XTRIM', journal, 'MAXLEN', '~', soft) end
  if redis.call('XLEN', journal) > tonumber(soft) then redis.call('XTRIM', journal, 'MINID', '~', mark) end
  if redis.call('XLEN', journal) <= tonumber(hard) then return end
  local first = redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1][2][2]
  redis.call('XTRIM', journal, 'MAXLEN', hard)
  local next = redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1][2][2]
  redis.call('HINCRBY', journal_state, 'serial', 1)
  redis.call('XADD', journal, '*', 'n', serial + 1, 'event', 'gap', 'first', first, 'count', next - first)
end

-- The last step but the reply.
local function write_journal(now)
  if #told == 0 then return end
  local serial, at = redis.call('HINCRBY', journal_state, 'serial', #told), string.format('%.0f', now)
  for nth, one in ipairs(told) do
    redis.call('XADD', journal, '*', 'n', serial - #told + nth, 'at', at, unpack(one))
  end
  if serial % 100 < #told then trim_journal(serial) end
end
