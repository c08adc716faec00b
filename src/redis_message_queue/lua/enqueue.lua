-- enqueue.lua: messages enter their lines, or wait for their time: all of a chunk or none, once for each call.
-- KEYS  pending: the line of messages without a tenant | bell: a token if there is work
--       deliveries: id to attempts and counts | leases: id and nonce by deadline
--       tenants: those with work, by virtual time | size: how many wait in the lines of tenants
--       weights: tenant to weight | delayed: id by due time | later: id to stored message
--       journal: what has happened | meta: version of what is stored, rules of the journal
--       reply: the caller's last answer | longest: whose line was the longest, where messages are dropped
--       marker: remembers a deduplication key (left out without one; there may be more of them)
-- ARGV  keep_ms: how long the answer is kept | line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       window_ms: how long a marker suppresses | limit: how many may wait, 0 for any number
--       tenant_limit: how many of one tenant may wait, 0 for any number | overload: at a limit 'refuse' or 'drop'
--       call: the caller's number for this call | base: what the ids begin with; the place in the chunk follows
--       form: 'bare' if all that follows are payloads, else 'full'
--       then for each message its payload; in full: due, marker, body
--       due: '' for at once, microseconds of the server's clock, or '+' and microseconds from now
--       marker: the place of its marker among the keys, 0 for none | body: flags and what follows the time stamp
-- Returns '1' or '0' for each message, in the line or suppressed as a duplicate, then the ids of messages that
--       were dropped to make room; or '-' if the chunk was refused because there is no room.
local pending, bell, deliveries, leases, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local size, weights, delayed, later = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local journal, meta, reply, longest = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local keep_ms, line, returned, window_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local limit, tenant_limit, drops = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == 'drop'
local call, base, bare = ARGV[8], ARGV[9], ARGV[10] == 'bare'
local now, arrival = nil, 'published'
--@include reply
if answer then
  -- A write of this connection, so that a WAIT behind it waits for something. (Without memory PSETEX would fail here.)
  redis.call('PEXPIRE', reply, keep_ms)
  return answer
end
--@include envelope
--@include lines
--@include later
--@include journal
--@include arrivals

local time = redis.call('TIME')
now = time[1] * 1000000 + time[2]
local width = bare and 1 or 3
local count = (#ARGV - 10) / width
if count > 1000 then error('at most 1,000 messages in one call', 0) end
local silent = redis.call('LLEN', bell) == 0

if bare and limit == 0 and not journaled then
  -- The usual case in a straight line: payloads alone, for a line without a limit.
  local stamp, pack, messages = struct.pack('>I8', now), struct.pack, {}
  for place = 1, count do messages[place] = '\128' .. base .. pack('>I2', place) .. stamp .. ARGV[10 + place] end
  answer = string.rep('1', count)
  if enter_line('LPUSH', '', messages) and silent then redis.call('LPUSH', bell, '1') end
  redis.call('PSETEX', reply, keep_ms, call .. answer)
  return answer
end

local arrivals = {}
for place = 1, count do
  local at = 10 + place * width
  local one = {id = base .. struct.pack('>I2', place), flags = '\128', body = ARGV[at], due = ''}
  if not bare then
    one.flags, one.body, one.due = string.sub(one.body, 1, 1), string.sub(one.body, 2), ARGV[at - 2]
    local marker = tonumber(ARGV[at - 1])
    one.marker = marker > 0 and KEYS[13 + marker] or nil
  end
  arrivals[place] = one
end

local marks, todo = plan(arrivals)
answer = '-'
if todo then
  local work, dropped = carry_out(todo, window_ms)
  answer = table.concat(marks) .. dropped
  if work and silent then redis.call('LPUSH', bell, '1') end
  write_journal(now)
end
redis.call('PSETEX', reply, keep_ms, call .. answer)
return answer
