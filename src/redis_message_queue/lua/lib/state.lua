-- lib/state.lua: refuses a queue whose stored state has another version, and tells what kind of queue it is.
-- Needs  meta, journal
-- Makes  journaled, uses_tenants, paused
-- `journaled` is '1' if the journal also holds payloads, '0' if it does not, and false for a queue without a journal.
-- A queue has a journal if `meta` says so: every client writes it, whatever its own options are.
-- `uses_tenants` is '1' once a message of a tenant has waited in a list or has been delayed, and false before.
-- `paused` is when an operator paused the queue, and false otherwise.
local journaled, uses_tenants, paused
do
  local version
  version, journaled, uses_tenants, paused
    = unpack(redis.call('HMGET', meta, 'version', 'journal', 'tenants', 'paused'))
  -- The first contact, or somebody flushed the server. By its hash: a name may have characters that an error cannot.
  if not version then error('NOSTATE ' .. redis.sha1hex(meta), 0) end
  if version ~= '1' then error('STATEVERSION ' .. version .. ' in ' .. meta, 0) end
  if journaled then redis.call('XLEN', journal) end -- a key of a wrong type fails here
end
