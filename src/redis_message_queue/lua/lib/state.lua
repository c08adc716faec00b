-- lib/state.lua: refuses a queue whose stored state has another version, and tells what kind of queue it is.
-- Needs  meta, journal, version_field
-- Makes  journaled, uses_tenants, paused, paused_tenants, counts, cancels, largest, remember_largest
-- `version_field` is 'version'. A client that asks for a journal or weights reads the version in a field that only such
-- a client writes: so it notices if the state was lost and another client, without these wishes, has written it anew.
-- `journaled` is '1' if the journal also holds payloads, '0' if it does not, and false for a queue without a journal.
-- A queue has a journal if `meta` says so: every client writes it, whatever its own options are.
-- `uses_tenants` is '1' once a message of a tenant has waited in a list or has been delayed, and false before.
-- `paused` is when an operator paused the queue, and false otherwise. `paused_tenants` is how many tenants are paused,
-- and false if none is. `counts` is '1' if some consumer limits how many messages of a tenant are in flight.
-- `cancels` is '1' if messages are marked as cancelled, 'g' if a streaming query may hold some of these messages, and
-- false if there is no mark. It may stay longer than the last mark, never shorter.
-- `largest` is the size of the largest message since the queue was empty, 0 if no message has been large: a script that
-- reads a piece of a list cannot ask how large its elements are. See lib/bounded.lua.
local journaled, uses_tenants, paused, paused_tenants, counts, cancels, largest
do
  local version
  version, journaled, uses_tenants, paused, paused_tenants, counts, cancels, largest = unpack(redis.call(
    'HMGET', meta, version_field, 'journal', 'tenants', 'paused', 'paused_tenants', 'counts', 'cancels', 'largest'))
  -- The first contact, or somebody flushed the server. By its hash: a name may have characters that an error cannot.
  if not version then error('NOSTATE ' .. redis.sha1hex(meta), 0) end
  if version ~= '1' then error('STATEVERSION ' .. version .. ' in ' .. meta, 0) end
  if journaled then redis.call('XLEN', journal) end -- a key of a wrong type fails here
  -- A foreign value counts as a size that leaves room for one message.
  if largest then largest = string.match(largest, '^%d+$') and #largest < 16 and tonumber(largest) or 1e15 end
  largest = largest or 0
end

-- Before messages enter the queue, the largest of them with so many bytes. A full server refuses it.
local function remember_largest(bytes)
  if bytes <= LARGE or bytes <= largest then return end
  redis.call('HSET', meta, 'largest', bytes)
  largest = bytes
end
