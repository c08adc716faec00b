-- redrive.lua: dead letters become messages again, once for each call.
-- KEYS  pending: the line of messages without a tenant | bell: a token if there is work
--       deliveries: id to attempts and counts | leases: id and nonce by deadline
--       tenants: those with work, by virtual time | size: how many wait in the lines of tenants
--       weights: tenant to weight | delayed: id by due time | later: id to stored message
--       journal: what has happened | meta: version of what is stored, rules of the journal
--       reply: the caller's last answer | dlq: payloads of dead messages | records: what is remembered beside them
--       marker: remembers a deduplication key (left out without one; there may be more of them)
-- ARGV  keep_ms: how long the answer is kept | line: what the key of a tenant's line begins with
--       window_ms: how long a marker suppresses | limit: how many may wait, 0 for any number
--       tenant_limit: how many of one tenant may wait, 0 for any number | call: the caller's number for this call
--       base: what the new ids begin with; the place in the chunk follows
--       then for each dead letter its place from the right, from 0, the SHA-1 of its payload, the place of its record
--       or -1, the SHA-1 of that, the place of its marker among the keys or 0, and body: flags and what follows the
--       time stamp
-- Returns '1', '0' or '?' for each: in its line, suppressed as a duplicate and still dead, or not there any more;
--       or '-' if they were refused because there is no room.
local pending, bell, deliveries, leases, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local size, weights, delayed, later = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local journal, meta, reply, dlq, records = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local keep_ms, line, window_ms = ARGV[1], ARGV[2], ARGV[3]
local limit, tenant_limit, call, base = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local now, arrival, drops = nil, 'redriven', false -- nobody makes room for the dead
--@include reply
if answer then return answer end
--@include envelope
--@include lines
--@include later
--@include journal
--@include arrivals

local time = redis.call('TIME')
now = time[1] * 1000000 + time[2]
local silent = redis.call('LLEN', bell) == 0
redis.call('LLEN', records)
local arrivals, chosen, marks = {}, {}, {}
for place = 1, (#ARGV - 7) / 6 do
  local from_right, sha1, record, its_sha1, marker, body = unpack(ARGV, 2 + 6 * place, 7 + 6 * place)
  local payload = redis.call('LINDEX', dlq, -1 - from_right)
  -- Where letters were trimmed meanwhile another one with the same words may stand there; its record tells.
  local note = tonumber(record) >= 0 and redis.call('LINDEX', records, -1 - record)
  marks[place] = '?'
  if payload and redis.sha1hex(payload) == sha1 and (its_sha1 == '' or note and redis.sha1hex(note) == its_sha1) then
    arrivals[#arrivals + 1] = {
      id = base .. struct.pack('>I2', place), flags = string.sub(body, 1, 1), body = string.sub(body, 2), due = '',
      marker = tonumber(marker) > 0 and KEYS[14 + marker] or nil,
    }
    chosen[#chosen + 1] = {place = place, letter = -1 - from_right, record = tonumber(record)}
  end
end
local entered, todo = plan(arrivals)
if not todo then
  answer = '-'
else
  local work = carry_out(todo, window_ms)
  -- A stone first where each of them was, so that no place shifts; then the stones are taken away together.
  local stone, letters_gone, records_gone = 'redriven ' .. base, 0, 0
  for nth, one in ipairs(chosen) do
    marks[one.place] = entered[nth]
    if entered[nth] == '1' then
      redis.call('LSET', dlq, one.letter, stone)
      letters_gone = letters_gone + 1
      if one.record >= 0 and redis.pcall('LSET', records, -1 - one.record, stone).ok then
        records_gone = records_gone + 1
      end
    end
  end
  -- From the right and no further than the last of them: all of a list of 500,000 took 27 ms.
  if letters_gone > 0 then redis.call('LREM', dlq, -letters_gone, stone) end
  if records_gone > 0 then redis.call('LREM', records, -records_gone, stone) end
  answer = table.concat(marks)
  if work and silent then redis.call('LPUSH', bell, '1') end
  write_journal(now)
end
redis.call('PSETEX', reply, keep_ms, call .. answer)
return answer
