-- lib/alarm.lua: when the next claim must look beyond the head of `pending`.
-- After lib/choose.lua has taken away what was chosen. Early does no harm, so a full server may refuse it.
local function set_alarms()
  local next_due = (still('ZRANGE', delayed, 0, 0, 'WITHSCORES') or {})[2]
  if next_due then still('ZADD', leases, next_due, 'd') else still('ZREM', leases, 'd') end
  local alone, had_a_turn = (still('ZCARD', tenants) or 0) == 1, false
  for _, turn in ipairs(turns) do had_a_turn = had_a_turn or (turn.tenant == '' and turn.from_line > 0) end
  -- Whoever has no tenant need not take turns with himself, once he has had the one that he waited for.
  if alone and had_a_turn and redis.call('ZSCORE', tenants, '') and (still('EXISTS', returned) or 0) == 0 then
    leave_ring('')
  end
end
