-- stats.lua: how many messages are where, and since when the oldest one waits.
-- KEYS  pending: the line of messages without a tenant | processing: id to stored message
--       delayed: id by due time | completed: payloads of handled messages | failed: payloads of failed ones
--       dlq: payloads of dead ones | tenants: those with work, by virtual time
--       size: how many wait in the lines of tenants | groups: how many lie in the claims of streaming queries
-- ARGV  line: what the key of a tenant's line begins with
--       cursor: the virtual time at which to go on looking at lines, '-inf' to begin, '' to look at none
--       last: the tenant that was looked at last, '' to begin
-- Returns {pending, processing, delayed, completed, failed, dlq, tenants, oldest, cursor, last}
--       oldest: microseconds since the oldest message was published that waits in `pending` or in the lines that were
--       looked at: at most 1,000, and 4 MB of messages; -1 if there is none
--       cursor, last: where to go on; the cursor is '' if everything was looked at
local pending, processing, delayed, completed, failed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dlq, tenants, size, groups = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local line, cursor, last = ARGV[1], ARGV[2], ARGV[3]
local MOST_TENANTS, MOST_BYTES = 1000, 4194304
--@include envelope
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local oldest, bytes = nil, 0
local function look_at(key)
  local stored = redis.call('LINDEX', key, -1)
  if not stored then return end
  bytes = bytes + #stored
  local published = #stored >= 25 and struct.unpack('>I8', stored, 18)
  if published and (not oldest or published < oldest) and is_message(stored) then oldest = published end
end

local waiting = redis.call('ZCARD', tenants) - (redis.call('ZSCORE', tenants, '') and 1 or 0)
local reply = {
  redis.call('LLEN', pending) + (tonumber(redis.call('GET', size)) or 0),
  redis.call('HLEN', processing) + (tonumber(redis.call('HGET', groups, '')) or 0),
  redis.call('ZCARD', delayed), redis.call('LLEN', completed), redis.call('LLEN', failed), redis.call('LLEN', dlq),
  waiting, -1, '', '',
}
if cursor ~= '' then
  if cursor == '-inf' then look_at(pending) end
  -- By virtual time, not by the place in the ring: tenants change their places while they are served, but a turn never
  -- moves one back.
  local ring
  if redis.call('ZSCORE', tenants, last) == cursor then
    local first = redis.call('ZRANK', tenants, last) + 1
    ring = redis.call('ZRANGE', tenants, first, first + MOST_TENANTS - 1)
  else
    ring = redis.call('ZRANGEBYSCORE', tenants, cursor, '+inf', 'LIMIT', 0, MOST_TENANTS)
  end
  bytes = 0
  for place, tenant in ipairs(ring) do
    if tenant ~= '' then look_at(line .. tenant) end
    if place == MOST_TENANTS or bytes >= MOST_BYTES and place < #ring then
      reply[9], reply[10] = redis.call('ZSCORE', tenants, tenant), tenant
      break
    end
  end
  if oldest then reply[8] = now - oldest end
end
return reply
