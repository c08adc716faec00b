-- lib/slices.lua: reads elements of a long list by their places, counted from one of its ends.
-- Makes  index_of, reader_of
-- Redis walks to a place: in the middle of a million records of 350 bytes that takes 0.2 ms, however many elements it
-- reads there. So far from both ends this reads slices, and near an end one by one, because a message can be large.
local DEEP, SLICE = 50000, 32

-- The index that makes Redis walk from the nearer end: Redis 6.2 goes by the sign.
local function index_of(place, length, side)
  local from_left = side == 'left' and place or length - 1 - place
  return from_left < length / 2 and from_left or from_left - length
end

-- Returns a function that returns the element at a place, or nil. Deep in a list, ask for places in ascending order.
local function reader_of(list, length, side)
  local first, slice = 0, {}
  return function(place)
    if place >= length then return nil end
    local is_near = math.min(place, length - 1 - place) < DEEP
    if is_near then return redis.call('LINDEX', list, index_of(place, length, side)) end
    if place < first or place >= first + #slice then
      first = place
      if side == 'left' then
        slice = redis.call('LRANGE', list, first, first + SLICE - 1)
      else
        slice = redis.call('LRANGE', list, -first - SLICE, -first - 1)
      end
    end
    local nth = place - first
    return slice[side == 'left' and nth + 1 or #slice - nth]
  end
end
