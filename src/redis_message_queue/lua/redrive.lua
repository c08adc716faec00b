-- redrive.lua: makes messages of dead letters or failed messages again, once for each call.
-- KEYS  pending | wakeup | deliveries | leases | tenant_ring | tenant_backlog | weights | delayed | delayed_messages
--       journal | meta | reply | dlq: payloads of dead messages, or of failed ones | records: those of dlq
--       markers...: each remembers which message has a deduplication key
-- ARGV  keep_ms | tenant_pending | window_ms: how long a marker suppresses duplicates
--       limit (number): how many may wait, 0 for any number
--       tenant_limit (number): how many of one tenant may wait, 0 for any number | call
--       base: what the new ids begin with; the place in the chunk follows
--       letters...: for each dead letter, the oldest first, its place from the right, from 0, the SHA-1 of its payload,
--       the place of its record or -1, the SHA-1 of that, the place of its marker among the markers or 0, and body:
--       flags and what follows the time stamp
-- Returns '1', '0' or '?' for each: stored, a duplicate and still dead, or no longer there; or '-' if there is no room.
--@include reply
if answer then return answer end
local stored_event, drops, longest, expired = 'redriven', false, nil, nil -- no message is dropped for a dead one
--@include state
--@include clock
--@include enqueue
--@include slices
--@include wake
--@include remember
local length, record_length = redis.call('LLEN', dlq), redis.call('LLEN', records)
local letter_at, record_at = reader_of(dlq, length, 'right'), reader_of(records, record_length, 'right')
local messages, markers_of, chosen, marks = {}, {}, {}, {}
for nth = 1, #letters / 6 do
  local place, sha1, record_place, record_sha1, marker, body = unpack(letters, 6 * nth - 5, 6 * nth)
  place, record_place = tonumber(place), tonumber(record_place)
  local payload, record = letter_at(place), record_place >= 0 and record_at(record_place)
  marks[nth] = '?'
  -- If letters were trimmed meanwhile, another one with the same payload may be there; its record tells.
  local is_record = record_sha1 == '' or record and redis.sha1hex(record) == record_sha1
  if payload and redis.sha1hex(payload) == sha1 and is_record then
    messages[#messages + 1] = to_stored(base .. struct.pack('>I2', nth), body)
    markers_of[#messages] = markers[tonumber(marker)]
    chosen[#chosen + 1] = {nth = nth, letter = place, record = record_place}
  end
end

-- LREM reads every element on its way: from the nearer end, and no further than the last of them. From the right alone,
-- a letter near the left end of 500,000 took 27 ms.
local tombstone = 'redriven ' .. base
local function remove(list, list_length, places)
  if #places == 0 then return end
  local from_left = list_length - places[1] < places[#places] + 1
  redis.call('LREM', list, from_left and #places or -#places, tombstone)
end

local entered, plan = plan_messages(messages, markers_of, {})
local result = '-'
if plan then
  local wakes = store_messages(plan, window_ms)
  -- Overwrite each of them first, so that no place shifts; then remove all of them together.
  local letters_gone, records_gone = {}, {}
  for place, one in ipairs(chosen) do
    marks[one.nth] = entered[place]
    if entered[place] == '1' then
      redis.call('LSET', dlq, index_of(one.letter, length, 'right'), tombstone)
      letters_gone[#letters_gone + 1] = one.letter
      if one.record >= 0 then
        redis.call('LSET', records, index_of(one.record, record_length, 'right'), tombstone)
        records_gone[#records_gone + 1] = one.record
      end
    end
  end
  remove(dlq, length, letters_gone)
  remove(records, record_length, records_gone)
  result = table.concat(marks)
  if wakes then wake() end
  write_journal()
end
return remember(result)
