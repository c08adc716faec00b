-- lib/tenants.lua: where the messages of a tenant wait, and how the tenant leaves the ring.
-- Needs  pending, tenant_ring, leases, tenant_pending, expired
-- Makes  pending_of, check_tenant, leave_ring, remove_expired
-- Messages without a tenant (tenant '') wait in `pending`, others in a list of their tenant. `tenant_pending` is what
-- the key of such a list begins with, `expired` the same for the messages of a tenant whose lease ran out. A tenant is
-- in the ring if and only if messages of it wait in one of the two. The member 'r' of `leases`, always due, is there as
-- long as the ring is: a claim that finds nothing due need not look at the ring.
local function pending_of(tenant)
  return tenant == '' and pending or tenant_pending .. tenant
end

-- A key of a wrong type, or one that has moved, fails here, before the script writes anything.
local function check_tenant(tenant)
  redis.call('LLEN', pending_of(tenant))
  redis.call('ZCARD', expired .. tenant)
end

-- Returns whether other tenants are still in the ring.
local function leave_ring(tenant)
  local others = redis.call('ZCARD', tenant_ring) > 1
  if redis.call('ZREM', tenant_ring, tenant) == 1 and not others then redis.call('ZREM', leases, 'r') end
  return others
end

-- Expired messages have an owner again, or are gone. With the last one, the tenant leaves the ring.
local function remove_expired(tenant, members)
  local last = redis.call('ZCARD', expired .. tenant) == #members and redis.call('LLEN', pending_of(tenant)) == 0
  redis.call('ZREM', expired .. tenant, unpack(members))
  if last then leave_ring(tenant) end
end
