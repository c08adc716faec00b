-- stats.lua: how many messages are where, and since when the oldest one waits.
-- KEYS  pending: the line of messages without a tenant | processing: id to stored message
--       delayed: id by due time | completed: payloads of handled messages | failed: payloads of failed ones
--       dlq: payloads of dead ones | tenants: those with work, by virtual time
--       size: how many wait in the lines of tenants | groups: how many lie in the claims of streaming queries
-- ARGV  line: what the key of a tenant's line begins with | first: the place in the ring to begin with, from 0
-- Returns {pending, processing, delayed, completed, failed, dlq, tenants, oldest, more}
--       oldest: microseconds since the oldest message was published that waits in `pending` or in the lines that were
--       looked at, at most 1,000 of them; -1 if there is none | more: 1 if there are lines to be looked at
local pending, processing, delayed, completed, failed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dlq, tenants, size, groups = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local line, first = ARGV[1], tonumber(ARGV[2])
--@include envelope
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local oldest
local function look_at(key)
  local stored = redis.call('LINDEX', key, -1)
  local published = stored and is_message(stored) and time_of(stored)
  if published and (not oldest or published < oldest) then oldest = published end
end
look_at(pending)
local ring = redis.call('ZRANGE', tenants, first, first + 999)
for _, tenant in ipairs(ring) do
  if tenant ~= '' then look_at(line .. tenant) end
end
local waiting = redis.call('ZCARD', tenants) - (redis.call('ZSCORE', tenants, '') and 1 or 0)
return {
  redis.call('LLEN', pending) + (redis.call('GET', size) or 0),
  redis.call('HLEN', processing) + (redis.call('HGET', groups, '') or 0),
  redis.call('ZCARD', delayed), redis.call('LLEN', completed), redis.call('LLEN', failed), redis.call('LLEN', dlq),
  waiting, oldest and now - oldest or -1, #ring == 1000 and 1 or 0,
}
