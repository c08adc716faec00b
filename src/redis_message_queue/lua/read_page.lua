-- read_page.lua: reads elements of lists and fields of hashes, no more than one reply should carry.
-- KEYS  sources...: lists and hashes
-- ARGV  max_elements (number): how many elements it returns at most
--       max_bytes (number): how many bytes they may have together; the first one may have more
--       parts...: for each key 'left', first and count: elements of a list from its left end, by their places from
--       there; or 'right', first and count: the same from its right end; or 'hash', how many fields, and the fields
-- Returns {more, page, ...}: 1 if the page was full before everything was read, else 0; and for each key that was
--       begun its elements in the order of the question, nil for a field that does not exist.
--@include slices
local elements, bytes, more = 0, 0, 0

-- Returns whether there was room for it.
local function add(page, element)
  local weight = element and #element or 0
  if elements == max_elements or elements > 0 and bytes + weight > max_bytes then
    more = 1
    return false
  end
  page[#page + 1], elements, bytes = element, elements + 1, bytes + weight
  return true
end

local at, pages = 1, {}
for nth, key in ipairs(sources) do
  local kind, page = parts[at], {}
  if kind == 'hash' then
    local count = tonumber(parts[at + 1])
    for place = at + 2, at + 1 + count do
      if not add(page, redis.call('HGET', key, parts[place])) then break end
    end
    at = at + 2 + count
  else
    local first, count, length = tonumber(parts[at + 1]), tonumber(parts[at + 2]), redis.call('LLEN', key)
    local read = reader_of(key, length, kind)
    for place = first, math.min(first + count, length) - 1 do
      if not add(page, read(place)) then break end
    end
    at = at + 3
  end
  pages[nth] = page
  if more == 1 then break end
end
return {more, unpack(pages)}
