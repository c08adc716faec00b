-- stats.lua: how many messages are where, and since when the oldest one waits.
-- KEYS  pending: the line of messages without a tenant | processing: id to stored message
--       delayed: id by due time | completed: payloads of handled messages | failed: payloads of failed ones
--       dlq: payloads of dead ones | tenants: those with work, by virtual time
--       size: how many wait in the lines of tenants | groups: how many lie in the claims of streaming queries
-- ARGV  line: what the key of a tenant's line begins with
--       cursor: where to go on looking at lines, '0' to begin, '' to look at none
--       then the tenants that the last call with this cursor did not come to
-- Returns {pending, processing, delayed, completed, failed, dlq, tenants, oldest, cursor, tenant, ...}
--       oldest: microseconds since the oldest message was published that waits in `pending` or in the lines that were
--       looked at; -1 if there is none | cursor: where to go on, '' if everything was looked at
--       tenant: those that are left to be looked at before that, because the heads of the others were 4 MB together
local pending, processing, delayed, completed, failed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dlq, tenants, size, groups = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local line, cursor = ARGV[1], ARGV[2]
local MOST_TENANTS, MOST_BYTES = 1000, 4194304
--@include envelope
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local oldest, bytes = nil, 0
local function look_at(key)
  local stored = redis.call('LINDEX', key, -1)
  if not stored then return end
  bytes = bytes + #stored
  local published = is_message(stored) and time_of(stored)
  if published and (not oldest or published < oldest) then oldest = published end
end

local waiting = redis.call('ZCARD', tenants) - (redis.call('ZSCORE', tenants, '') and 1 or 0)
local reply = {
  redis.call('LLEN', pending) + (redis.call('GET', size) or 0),
  redis.call('HLEN', processing) + (redis.call('HGET', groups, '') or 0),
  redis.call('ZCARD', delayed), redis.call('LLEN', completed), redis.call('LLEN', failed), redis.call('LLEN', dlq),
  waiting, -1, '',
}
if cursor ~= '' then
  local names, go_on = {unpack(ARGV, 3)}, cursor
  if cursor == '0' and #names == 0 then look_at(pending) end
  if #names == 0 then
    -- By a cursor, not by the place in the ring: tenants change their places while they are served.
    local scanned = redis.call('ZSCAN', tenants, cursor, 'COUNT', MOST_TENANTS)
    go_on, bytes = scanned[1], 0
    for place = 1, #scanned[2], 2 do names[#names + 1] = scanned[2][place] end
  end
  local looked_at = 0
  for _, tenant in ipairs(names) do
    if bytes >= MOST_BYTES and looked_at > 0 then
      reply[#reply + 1] = tenant
    elseif tenant ~= '' then
      look_at(line .. tenant)
      looked_at = looked_at + 1
    end
  end
  if oldest then reply[8] = now - oldest end
  if go_on ~= '0' or #reply > 9 then reply[9] = go_on end
end
return reply
