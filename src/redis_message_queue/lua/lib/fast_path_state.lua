-- lib/fast_path_state.lua: as lib/state.lua, for scripts that know the fast path alone.
-- Needs  meta, version_field
-- Makes  journaled, paused, counts, cancels
-- A queue with one of these is not on the fast path: such a script does nothing, and needs no more of `meta`. Each
-- field costs 0.2 µs, and a key 0.3.
local journaled, paused, counts, cancels
do
  local version
  version, journaled, paused, counts, cancels
    = unpack(redis.call('HMGET', meta, version_field, 'journal', 'paused', 'counts', 'cancels'))
  if not version then error('NOSTATE ' .. redis.sha1hex(meta), 0) end
  if version ~= '1' then error('STATEVERSION ' .. version .. ' in ' .. meta, 0) end
end
