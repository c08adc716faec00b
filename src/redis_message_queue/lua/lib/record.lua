-- lib/record.lua: what is remembered of a message beside its payload in a list: a JSON object, in a list beside it.
-- Needs envelope and journal.
-- Times are text, in microseconds: as numbers they would be rounded. Length and digest tell which payload is meant.

-- Its texts alone: a number that JSON cannot write again would keep a message from leaving. nil for none.
local function texts_of(headers)
  local texts
  for name, value in pairs(type(headers) == 'table' and headers or {}) do
    if type(name) == 'string' and type(value) == 'string' then
      texts = texts or {}
      texts[name] = value
    end
  end
  return texts
end

local function record(stored, payload, times, finished, note)
  local one = {bytes = #payload, sha1 = redis.sha1hex(payload), finished = string.format('%.0f', finished)}
  for name, value in pairs(note) do one[name] = value end
  if note.held_us then
    one.held_us = nil
    one.claimed = string.format('%.0f', finished - note.held_us)
  end
  if stored then
    one.id, one.deliveries = hex(id_of(stored)), times
    one.published = string.format('%.0f', time_of(stored))
    local tenant = tenant_of(stored)
    if tenant ~= '' then one.tenant = tenant end
    local extras = extras_of(stored)
    if type(extras.replay_of) == 'string' then one.replay_of = extras.replay_of end
    one.headers = texts_of(extras.headers) -- so that a redrive can repeat them
  end
  return cjson.encode(one)
end

-- Push payloads and their records, and cut both to `limit` (0: none). Records follow their list: what somebody has
-- cut there by hand is cut here with the next write. Returns what went wrong with trimming, or '', and how many
-- payloads were cut off.
local function keep(list, records, payloads, notes, limit)
  local length = redis.call('LPUSH', list, unpack(payloads))
  local noted = redis.call('LPUSH', records, unpack(notes))
  local cut = 0
  if limit > 0 and length > limit then
    local trimmed = redis.pcall('LTRIM', list, 0, limit - 1)
    if trimmed.err then return trimmed.err, 0 end
    length, cut = limit, length - limit
  end
  if noted > length then redis.pcall('LTRIM', records, 0, length - 1) end
  return '', cut
end
