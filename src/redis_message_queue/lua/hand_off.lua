-- hand_off.lua: a message leaves its queue and its results enter others, all of it or nothing.
-- KEYS  processing: id to stored message | leases: id and nonce by deadline | deliveries: id to attempts and counts
--       pending: the line of messages without a tenant | tenants: those with work, by virtual time
--       journal: what has happened | meta: version of what is stored, rules of the journal
--       reply: the caller's last answer
--       kept: completed | records: what is remembered beside the payloads there
--       target: of each target in turn pending, bell, deliveries, leases, tenants, size, weights, delayed, later,
--       journal, meta, longest; at the end the markers of all messages
-- ARGV  keep_ms: how long the answer is kept | leased: 1 if the caller has leases
--       line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       kept_limit: length of kept, 0 for any, -1 to keep nothing | note: a JSON object for the records
--       call: the caller's number for this call | tokens: the lease of the message
--       then for each target line, returned, window_ms, limit, tenant_limit, overload, base, the number of messages,
--       and for
--       each of these due, the place of its marker among the markers (0 for none), and body, as in enqueue.lua
-- Returns '0' if the message was not the caller's any more; '-' and the number of a target that is full; or '1',
--       for each message '1' or '0' (entered, or a duplicate there), then for each target in two bytes how many had to
--       make room and their ids, then what went wrong with trimming. In the first two cases nothing was changed.
local processing, leases, deliveries, pending, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local journal, meta, reply, kept, records = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local keep_ms, leased, line, returned = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4]
local kept_limit, note, call, tokens = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
local size, weights, delayed, later, bell, now, limit, tenant_limit, drops, longest
local arrival = 'published'
--@include reply
if answer then
  redis.call('PEXPIRE', reply, keep_ms)
  return answer
end
--@include envelope
--@include ledger
--@include lines
--@include later
--@include journal
--@include arrivals
--@include record
--@include held

-- The message itself.
local id, bodies = ids[1], redis.call('HMGET', processing, fields[1])
local stored = bodies[1]
if not stored or not is_message(stored) or not find_leases(bodies)[1] then return '0' end
local _, times = read_entry(deliveries, id, stored, 1)
local keeps, tenant = kept_limit >= 0, tenant_of(stored)
if keeps then
  redis.call('LLEN', kept)
  redis.call('LLEN', records)
end
redis.call('ZCARD', leases)
redis.call('ZCARD', tenants)
check_line(tenant)
local time = redis.call('TIME')
now = time[1] * 1000000 + time[2]

-- The steps in lib/ work on the queue that these names stand for at the moment.
local home = {leases, deliveries, pending, tenants, line, returned, journal, meta}
local function turn_to(target)
  pending, bell, deliveries, leases, tenants = unpack(KEYS, target.keys, target.keys + 4)
  size, weights, delayed, later, journal, meta, longest = unpack(KEYS, target.keys + 5, target.keys + 11)
  line, returned = target.line, target.returned
  limit, tenant_limit, drops = target.limit, target.tenant_limit, target.drops
end

-- First only look, at each target in turn.
local targets, at, messages = {}, 9, 0
while at <= #ARGV do
  local target = {
    keys = 11 + 12 * #targets, line = ARGV[at], returned = ARGV[at + 1], window_ms = ARGV[at + 2],
    limit = tonumber(ARGV[at + 3]), tenant_limit = tonumber(ARGV[at + 4]), drops = ARGV[at + 5] == 'drop',
    base = ARGV[at + 6], arrivals = tonumber(ARGV[at + 7]), first = at + 8,
  }
  targets[#targets + 1] = target
  at, messages = target.first + 3 * target.arrivals, messages + target.arrivals
end
if messages > 1000 then error('at most 1,000 messages in one call', 0) end
local markers_at = 10 + 12 * #targets
local marks = {}
for nth, target in ipairs(targets) do
  local arrivals = {}
  for place = 1, target.arrivals do
    local due, marker, body = unpack(ARGV, target.first + 3 * (place - 1), target.first + 3 * place - 1)
    arrivals[place] = {
      id = target.base .. struct.pack('>I2', place), flags = string.sub(body, 1, 1), body = string.sub(body, 2),
      due = due, marker = tonumber(marker) > 0 and KEYS[markers_at + marker] or nil,
    }
  end
  turn_to(target)
  open_journal()
  target.silent = redis.call('LLEN', bell) == 0
  local theirs, todo = plan(arrivals)
  if not todo then
    -- Remembered, so that a straggler cannot do it after all, when its caller has been told and has gone on.
    answer = '-' .. nth
    redis.call('PSETEX', reply, keep_ms, call .. answer)
    return answer
  end
  target.todo = todo
  for _, mark in ipairs(theirs) do marks[#marks + 1] = mark end
end

-- Now write: the results first, then what they were made of is taken away.
local dropped, complaint = '', ''
for _, target in ipairs(targets) do
  turn_to(target)
  open_journal()
  local work, gone = carry_out(target.todo, target.window_ms)
  write_journal(now)
  dropped = dropped .. struct.pack('>I2', #gone / 16) .. gone
  if work and target.silent then redis.call('LPUSH', bell, '1') end
end
leases, deliveries, pending, tenants, line, returned, journal, meta = unpack(home)
open_journal()
if keeps then
  local payload = payload_of(stored)
  complaint = keep(kept, records, {payload}, {record(stored, payload, times, now, cjson.decode(note))}, kept_limit)
end
redis.call('HDEL', processing, fields[1])
if has_entry(stored) then redis.call('HDEL', deliveries, id) end
if leased then redis.call('ZREM', leases, tokens) end
if came_back[tenant] then leave_returned(tenant, came_back[tenant]) end
tell('handed_off', id, tenant, 'results', messages)
write_journal(now)
answer = '1' .. table.concat(marks) .. dropped .. complaint
redis.call('PSETEX', reply, keep_ms, call .. answer)
return answer
