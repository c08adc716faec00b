-- sweep.lua: up to 1,000 messages are removed for good, by an operator, once for each call.
-- KEYS  pending: the line of messages without a tenant | processing: id to stored message
--       leases: id and nonce by deadline | deliveries: id to attempts and counts
--       tenants: those with work, by virtual time
--       size: how many wait in the lines of tenants | weights: tenant to weight | delayed: id by due time
--       later: id to stored message | journal: what has happened
--       meta: version of what is stored, rules of the journal
--       reply: the caller's last answer | kept: completed, failed or dlq, for a list
--       records: what is remembered beside the payloads there
-- ARGV  keep_ms: how long the answer is kept | line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with | call: the caller's number for this call
--       event: 'purged' or 'deleted', for the journal | target: what is purged, for the journal
--       what: 'line' of a tenant with what came back to it, 'delayed', a 'list', or 'orphans', which are in flight and
--       nobody works on them
--       whose: tenant of that line, '' for those without one; the tokens of orphans, one behind the other
-- Returns how many, a space, and '1' if there is more to do.
local pending, processing, leases, deliveries, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local size, weights, delayed, later = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local journal, meta, reply, kept, records = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local keep_ms, line, returned, call = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local event, target, what, whose = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
--@include reply
if answer then return answer end
--@include journal
--@include envelope
--@include lines
local STEPS = 1000

check_lines()
redis.call('HLEN', deliveries)
redis.call('HLEN', processing)
redis.call('ZCARD', delayed)
redis.call('HLEN', later)
if what == 'list' then
  redis.call('LLEN', kept)
  redis.call('LLEN', records)
end
redis.call('HDEL', processing, '') -- a first write that a server without memory accepts
local count, more = 0, ''
if what == 'line' then
  local tenant = whose
  check_line(tenant)
  local waiting = redis.call('LLEN', line_of(tenant)) + redis.call('ZCARD', returned .. tenant)
  local came_back = redis.call('ZRANGE', returned .. tenant, 0, STEPS - 1)
  local room = STEPS - #came_back
  local gone = room > 0 and redis.call('RPOP', line_of(tenant), room) or {}
  local known, in_flight = {}, {}
  for place, token in ipairs(came_back) do
    in_flight[place] = string.sub(token, 1, 16)
    known[place] = in_flight[place]
  end
  for _, stored in ipairs(gone) do
    if is_message(stored) and has_entry(stored) then known[#known + 1] = id_of(stored) end
  end
  count = #gone + #came_back
  if tenant ~= '' then shrink(#gone) end
  if #known > 0 then redis.call('HDEL', deliveries, unpack(known)) end
  if #came_back > 0 then
    redis.call('HDEL', processing, unpack(in_flight))
    redis.call('ZREM', returned .. tenant, unpack(came_back))
  end
  if waiting > count then more = '1' else leave_ring(tenant) end
elseif what == 'delayed' then
  local ids, waiting = redis.call('ZRANGE', delayed, 0, STEPS - 1), redis.call('ZCARD', delayed)
  count = #ids
  if count > 0 then
    redis.call('ZREM', delayed, unpack(ids))
    redis.call('HDEL', later, unpack(ids))
    redis.call('HDEL', deliveries, unpack(ids))
  end
  if waiting > count then more = '1' else redis.call('ZREM', leases, 'd') end
elseif what == 'list' then
  count = redis.call('LLEN', kept)
  redis.call('UNLINK', kept, records)
else
  -- Orphans: a consumer without leases that died leaves its message in flight. A token that somebody has settled
  -- meanwhile is none any more.
  local gone = {}
  for at = 1, math.min(#whose, 36 * STEPS), 36 do
    local token = string.sub(whose, at, at + 35)
    if redis.call('HDEL', processing, token) == 1 then gone[#gone + 1] = string.sub(token, 1, 16) end
  end
  count = #gone
  if count > 0 then redis.call('HDEL', deliveries, unpack(gone)) end
end
answer = string.format('%d %s', count, more)
if count > 0 then tell(event, '', what == 'line' and whose or '', 'count', count, 'target', target) end
local time = redis.call('TIME')
write_journal(time[1] * 1000000 + time[2])
redis.call('PSETEX', reply, keep_ms, call .. answer)
return answer
