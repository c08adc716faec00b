-- reject_members.lua: moves messages that a query cannot read from a claim of its group to the dead letters.
-- Each leaves an empty place: a claim that is read again has every other message in the same slice.
-- KEYS  deliveries | dlq | records: those of dlq | group | members: the messages of the claim
--       groups | journal | meta
-- ARGV  dlq_limit (number): length of dlq, 0 for any | whose: the group's name | query: who calls | epoch: the caller's
--       number (number): of the claim, which is open, or sealed and not acked | reason: why they are dead letters
--       places...: of each message its index in `members` and its id, for at most 1,000 messages
-- Returns {length, trimming}: how many messages the claim holds now, and what claim.lua says of trimming dlq
-- A message that is not at its index was moved by a call that this one repeats.
if #places > 2 * MAX_MESSAGES then error(TOO_MANY, 0) end
--@include group
--@include batch
--@include state
--@include clock
--@include record
--@include check_types
if number <= progress.acked or number > progress.sealed + 1 then
  error('OVERTAKEN by a later call of the same caller', 0)
end
check_types('LLEN', dlq, records)
check_types('HLEN', deliveries, groups)
local found, payloads, notes, with_entries = {}, {}, {}, {}
for at = 1, #places, 2 do
  local index, id = places[at], places[at + 1]
  local member = redis.call('LINDEX', members, index)
  local stored = member and from_member(member)
  if stored and is_message(stored) and id_of(stored) == id then
    local times = tonumber(string.match(member, '^(%d+):') or 1)
    found[#found + 1] = index
    payloads[#payloads + 1] = payload_of(stored)
    notes[#notes + 1] = to_record(stored, payload_of(stored), times, {reason = reason})
    if has_entry(stored) then with_entries[#with_entries + 1] = id end
    record_event('dead', id, tenant_of(stored), 'reason', reason, 'count', times)
  end
end
if #found == 0 then return {batch.messages, ''} end

-- First a write that a full server accepts and that empties no key: see rules 1 and 2 of README.md.
redis.call('HDEL', group, '')
local trim_error, cut = push_terminal(dlq, records, payloads, notes, dlq_limit)
if #with_entries > 0 then redis.call('HDEL', deliveries, unpack(with_entries)) end
batch.messages, batch.empty = batch.messages - #found, batch.empty + #found
batch.known = batch.known - #with_entries
write_batch(number, batch, -#found)
for _, index in ipairs(found) do redis.call('LSET', members, index, EMPTY) end
write_journal()
return {batch.messages, cut > 0 and 'cut ' .. cut or trim_error}
