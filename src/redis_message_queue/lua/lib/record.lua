-- lib/record.lua: pushes payloads to a list, and what is known of each message to a list of records beside it.
-- Needs  now
-- Makes  to_record, push_terminal
-- A record is a JSON object. Times are text, in microseconds: as numbers they would be rounded. The length and the
-- digest tell which payload the record belongs to.
--@include journal
--@include envelope

-- Only texts: a number that JSON cannot write again would keep a message from leaving. nil if there are none.
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

-- `stored` is nil for bytes that are not a message of ours.
local function to_record(stored, payload, times, note)
  local one = {bytes = #payload, sha1 = redis.sha1hex(payload), finished = string.format('%.0f', now)}
  for name, value in pairs(note) do one[name] = value end
  if note.held_us then
    one.held_us = nil
    one.claimed = string.format('%.0f', now - note.held_us)
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

-- Trims both lists to `max_length` (0: no limit). If somebody shortened the list by hand, its records follow with the
-- next push. Returns the error of the trimming, or '', and how many payloads were cut off.
local function push_terminal(list, list_records, payloads, notes, max_length)
  local length = redis.call('LPUSH', list, unpack(payloads))
  local noted = redis.call('LPUSH', list_records, unpack(notes))
  local cut = 0
  if max_length > 0 and length > max_length then
    local trimmed = redis.pcall('LTRIM', list, 0, max_length - 1)
    if trimmed.err then return trimmed.err, 0 end
    length, cut = max_length, length - max_length
  end
  if noted > length then redis.pcall('LTRIM', list_records, 0, length - 1) end
  return '', cut
end
