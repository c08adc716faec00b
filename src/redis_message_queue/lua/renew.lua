-- renew.lua: leases begin anew, as far as the caller still holds them.
-- KEYS  processing: id to stored message | leases: id by deadline | deliveries: id to lease number and count
--       pending: the line of messages without a tenant | tenants: those with work, by virtual time
-- ARGV  lease_us: length of a lease | line: what the key of a tenant's line begins with
--       returned: what the key of a tenant's returned messages begins with
--       whom: the ids, one behind the other | numbers: their lease numbers with spaces between, '' if all of them are 1
-- Returns '1' or '0' for each message: renewed, or lost.
-- It needs no reply cache: sent twice it does the same, and the lease number keeps out whoever has lost it.
local processing, leases, deliveries, pending, tenants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local lease_us, line, returned, whom, numbers = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local size, weights
--@include envelope
--@include lines
--@include held
local time = redis.call('TIME')
local deadline = time[1] * 1000000 + time[2] + lease_us

local entries, leased = redis.call('HMGET', deliveries, unpack(ids)), redis.call('ZMSCORE', leases, unpack(ids))
local marks, held, deadlines, came_back = {}, {}, {}, {}
for nth, id in ipairs(ids) do
  local entry = entries[nth]
  local lease = not entry and '1' or string.match(entry, '^(%d+):%d+$') or string.match(entry, '^(%d+):%d+:%d+$')
  if not lease then error('the deliveries hash holds a foreign value', 0) end
  local ours = tonumber(lease) == lease_number(nth)
  local holds = ours and leased[nth]
  if ours and not holds then
    -- A lease that had run out may lie among its tenant's returned messages, where nobody has taken it yet.
    local stored = redis.call('HGET', processing, id)
    local tenant = stored and tenant_of(stored)
    holds = stored and redis.call('ZSCORE', returned .. tenant, id)
    if holds then
      came_back[tenant] = came_back[tenant] or {}
      table.insert(came_back[tenant], id)
      redis.call('ZCARD', tenants)
      check_line(tenant)
    end
  end
  if holds then
    held[#held + 1] = id
    marks[#marks + 1] = '1'
    deadlines[#deadlines + 1] = deadline + #held
    deadlines[#deadlines + 1] = id
  else
    marks[#marks + 1] = '0'
  end
end

if #held > 0 then
  -- A first write that a server without memory accepts, for a lease must not end for that. It removes nothing: a key
  -- that it emptied would count as moved in a slot that is leaving, and ZADD would fail.
  redis.call('ZREM', leases, '')
  redis.call('ZADD', leases, unpack(deadlines))
  for tenant, ids_of_it in pairs(came_back) do leave_returned(tenant, ids_of_it) end
end
return table.concat(marks)
