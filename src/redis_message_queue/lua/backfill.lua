-- backfill.lua: stores the next rows of a split of a source, all or none, if the split is as far as the caller knows.
-- KEYS  pending | wakeup | deliveries | leases | tenant_ring | tenant_backlog | weights | delayed | delayed_messages
--       journal | meta | longest | backfill: how far each split is
-- ARGV  tenant_pending | expired | keep_ms: how long `backfill` is kept
--       limit (number): how many may wait, 0 for any number
--       tenant_limit (number): how many of one tenant may wait, 0 for any number
--       base: what the ids begin with; the place in the chunk follows
--       split: its field in `backfill` | before: how far it is, '' at its start | after: how far it is then
--       bodies...: of each message its flags and what follows the time stamp
-- Returns how far the split is now: `after` if the rows are stored, by this call or by one that it repeats; what
--       another caller has made of it; or '-' if there is no room for the rows.
local done = redis.call('HGET', backfill, split) or ''
if done ~= before then return done end
--@include state
--@include clock
if #bodies > MAX_MESSAGES then error(TOO_MANY, 0) end
--@include wake
local drops, stored_event = false, 'published'
--@include enqueue
local messages = {}
for place, body in ipairs(bodies) do messages[place] = to_stored(base .. struct.pack('>I2', place), body) end
local _, plan = plan_messages(messages, {}, {})
if not plan then return '-' end
local wakes = store_messages(plan, 0)
redis.call('HSET', backfill, split, after)
redis.call('PEXPIRE', backfill, keep_ms)
if wakes then wake() end
write_journal()
return after
