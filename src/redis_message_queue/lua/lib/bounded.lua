-- lib/bounded.lua: a budget of bytes for what a script reads.
-- Makes  new_budget
-- Everything that a script reads is copied while other clients wait: 200 messages of 1 MB took 4 s. A list does not
-- say how large its elements are, so a script reads pieces: first one element, then more, but no more than fit if each
-- is as large as the largest message of the queue. (Only what somebody else wrote into the list can be larger.)

-- `known` is the size of the largest element, 0 if none is larger than LARGE.
local function new_budget(known)
  local bytes, widest, largest, piece = 0, 0, math.max(known, LARGE), 1
  return {
    bytes = function() return bytes end,
    widest = function() return widest end,
    is_spent = function() return bytes >= MAX_BYTES end,
    -- Returns whether it is spent now.
    count = function(stored)
      local size = #stored
      bytes = bytes + size
      if size > widest then
        widest = size
        largest = math.max(largest, widest)
      end
      return bytes >= MAX_BYTES
    end,
    -- The same for several elements that were read together.
    count_all = function(sum, largest_of_them)
      bytes, widest = bytes + sum, math.max(widest, largest_of_them)
      largest = math.max(largest, widest)
    end,
    -- How many of `wanted` elements to read next.
    next_piece = function(wanted)
      local next = math.min(wanted, piece, math.max(1, math.floor((MAX_BYTES - bytes) / largest)))
      piece = math.min(piece * 8, MAX_PIECE)
      return next
    end,
  }
end
