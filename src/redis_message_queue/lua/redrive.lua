-- redrive.lua: dead letters, or failed messages, become messages again, once for each call.
-- KEYS  pending: the line of messages without a tenant | bell: a token if there is work
--       deliveries: id to attempts and counts | leases: id and nonce by deadline
--       tenants: those with work, by virtual time | size: how many wait in the lines of tenants
--       weights: tenant to weight | delayed: id by due time | later: id to stored message
--       journal: what has happened | meta: version of what is stored, rules of the journal
--       reply: the caller's last answer | dlq: payloads of dead messages, or of failed ones
--       records: what is remembered beside them
--       marker: remembers a deduplication key (left out without one; there may be more of them)
-- ARGV  keep_ms: how long the answer is kept | line: what the key of a tenant's line begins with
--       window_ms: how long a marker suppresses | limit: how many may wait, 0 for any number
--       tenant_limit: how many of one tenant may wait, 0 for any number | call: the caller's number for this call
--       base: what the new ids begin with; the place in the chunk follows
--       then for each dead letter, the oldest first, its place from the right, from 0, the SHA-1 of its payload, the
--       place of its record or -1, the SHA-1 of that, the place of its marker among the keys or 0, and body: flags and
--       what follows the time stamp
-- Returns '1', '0' or '?' for each: in its line, suppressed as a duplicate and still dead, or not there any more;
--       or '-' if they were refused because there is no room.
local pending, bell, deliveries, leases, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local size, weights, delayed, later = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local journal, meta, reply, dlq, records = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local keep_ms, line, window_ms = ARGV[1], ARGV[2], ARGV[3]
local limit, tenant_limit, call, base = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local now, arrival, drops, returned, longest = nil, 'redriven', false -- nobody makes room for the dead
--@include reply
if answer then return answer end
--@include envelope
--@include lines
--@include later
--@include journal
--@include arrivals
--@include slices

local time = redis.call('TIME')
now = time[1] * 1000000 + time[2]
local silent = redis.call('LLEN', bell) == 0
local letters, notes = redis.call('LLEN', dlq), redis.call('LLEN', records)
local letter_at, note_at = reader_of(dlq, letters, 'right'), reader_of(records, notes, 'right')
local arrivals, chosen, marks = {}, {}, {}
for place = 1, (#ARGV - 7) / 6 do
  local from_right, sha1, record, its_sha1, marker, body = unpack(ARGV, 2 + 6 * place, 7 + 6 * place)
  from_right, record = tonumber(from_right), tonumber(record)
  local payload = letter_at(from_right)
  -- Where letters were trimmed meanwhile another one with the same words may stand there; its record tells.
  local note = record >= 0 and note_at(record)
  marks[place] = '?'
  if payload and redis.sha1hex(payload) == sha1 and (its_sha1 == '' or note and redis.sha1hex(note) == its_sha1) then
    arrivals[#arrivals + 1] = {
      id = base .. struct.pack('>I2', place), flags = string.sub(body, 1, 1), body = string.sub(body, 2), due = '',
      marker = tonumber(marker) > 0 and KEYS[14 + marker] or nil,
    }
    chosen[#chosen + 1] = {place = place, letter = from_right, record = record}
  end
end
-- LREM reads every element on its way: from the nearer end, and no further than the last of them. From the right alone,
-- a letter near the left end of 500,000 took 27 ms.
local stone = 'redriven ' .. base
local function remove(list, length, places)
  if #places == 0 then return end
  local from_left = length - places[1] < places[#places] + 1
  redis.call('LREM', list, from_left and #places or -#places, stone)
end

local entered, todo = plan(arrivals)
if not todo then
  answer = '-'
else
  local work = carry_out(todo, window_ms)
  -- Each of them is overwritten first, so that no place shifts; then all are removed together.
  local letters_gone, records_gone = {}, {}
  for nth, one in ipairs(chosen) do
    marks[one.place] = entered[nth]
    if entered[nth] == '1' then
      redis.call('LSET', dlq, index_of(one.letter, letters, 'right'), stone)
      letters_gone[#letters_gone + 1] = one.letter
      if one.record >= 0 then
        redis.call('LSET', records, index_of(one.record, notes, 'right'), stone)
        records_gone[#records_gone + 1] = one.record
      end
    end
  end
  remove(dlq, letters, letters_gone)
  remove(records, notes, records_gone)
  answer = table.concat(marks)
  if work and silent then redis.call('LPUSH', bell, '1') end
  write_journal(now)
end
redis.call('PSETEX', reply, keep_ms, call .. answer)
return answer
