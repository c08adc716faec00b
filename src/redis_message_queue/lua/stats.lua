-- stats.lua: counts the messages in each state, and finds out how long the oldest one has waited.
-- KEYS  pending | processing | delayed | completed | failed | dlq | tenant_ring | tenant_backlog | groups
--       meta
-- ARGV  tenant_pending | cursor: the virtual time from which to look at tenants, '-inf' to begin, '' to look at none
--       last: the tenant that was looked at last, '' to begin
-- Returns {pending, processing, delayed, completed, failed, dlq, tenants, paused, paused_tenants, oldest, cursor, last}
--       paused: 1 if the queue is paused, else 0
--       oldest: microseconds since the oldest message was published, in `pending` or in the lists it looked at: at most
--       1,000, and 4 MB of messages; -1 if there is none
--       cursor, last: where to continue; the cursor is '' if it has looked at everything
-- Of a queue with partitions it would count the first alone.
local version = redis.call('HGET', meta, 'version')
if version and version ~= '1' then error('STATEVERSION ' .. version .. ' in ' .. meta, 0) end
--@include envelope
--@include clock
local oldest, bytes = nil, 0
local function look_at(key)
  local stored = redis.call('LINDEX', key, -1)
  if not stored then return end
  bytes = bytes + #stored
  local published = #stored >= 25 and time_of(stored)
  if published and (not oldest or published < oldest) and is_message(stored) then oldest = published end
end

-- 0 for a number that somebody damaged: the next script that writes it counts again.
local function to_number(text)
  return text and #text <= 15 and tonumber(string.match(text, '^%d+$')) or 0
end

local waiting = redis.call('ZCARD', tenant_ring) - (redis.call('ZSCORE', tenant_ring, '') and 1 or 0)
local paused, paused_tenants = unpack(redis.call('HMGET', meta, 'paused', 'paused_tenants'))
local result = {
  redis.call('LLEN', pending) + to_number(redis.call('GET', tenant_backlog)),
  redis.call('HLEN', processing) + to_number(redis.call('HGET', groups, '')),
  redis.call('ZCARD', delayed), redis.call('LLEN', completed), redis.call('LLEN', failed), redis.call('LLEN', dlq),
  waiting, paused and 1 or 0, to_number(paused_tenants), -1, '', '',
}
if cursor ~= '' then
  if cursor == '-inf' then look_at(pending) end
  -- By virtual time, not by the place in the ring: tenants change their places while they are served, but a turn never
  -- moves one back.
  local ring
  if redis.call('ZSCORE', tenant_ring, last) == cursor then
    local first = redis.call('ZRANK', tenant_ring, last) + 1
    ring = redis.call('ZRANGE', tenant_ring, first, first + MAX_MESSAGES - 1)
  else
    ring = redis.call('ZRANGEBYSCORE', tenant_ring, cursor, '+inf', 'LIMIT', 0, MAX_MESSAGES)
  end
  bytes = 0
  for place, tenant in ipairs(ring) do
    if tenant ~= '' then look_at(tenant_pending .. tenant) end
    if place == MAX_MESSAGES or bytes >= MAX_BYTES and place < #ring then
      result[11], result[12] = redis.call('ZSCORE', tenant_ring, tenant), tenant
      break
    end
  end
  if oldest then result[10] = now - oldest end
end
return result
