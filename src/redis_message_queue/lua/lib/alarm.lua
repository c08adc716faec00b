-- lib/alarm.lua: when the next claim must look beyond the head of `pending`.
-- After lib/choose.lua has taken away what was chosen. Early does no harm, so a full server may refuse it.
-- Returns when the next delay ends, if there is one, and how many take turns.
local function set_alarms()
  local next_due = (still('ZRANGE', delayed, 0, 0, 'WITHSCORES') or {})[2]
  if next_due then still('ZADD', leases, next_due, 'd') else still('ZREM', leases, 'd') end
  local in_turns, had_a_turn = still('ZCARD', tenants) or 0, false
  for _, turn in ipairs(turns) do had_a_turn = had_a_turn or (turn.tenant == '' and turn.from_line > 0) end
  if in_turns == 1 and had_a_turn and redis.call('ZSCORE', tenants, '') and (still('EXISTS', returned) or 0) == 0 then
    -- Whoever has no tenant need not take turns with himself; but first he has the one he waits for, or a tenant that
    -- comes and goes between two claims would be before him every time.
    leave_ring('')
    in_turns = 0
  end
  return next_due, in_turns
end
