-- lib/bounded.lua: a budget of bytes for what a script reads.
-- Makes  new_budget
-- Everything that a script reads is copied while other clients wait: 200 messages of 1 MB took 4 s. A list does not
-- say how large its elements are, so a script reads pieces: first one element, then more, fewer if one was large.
local MAX_BYTES, MAX_PIECE = 4000000, 64

local function new_budget()
  local bytes, largest, piece = 0, 1, 1
  return {
    bytes = function() return bytes end,
    is_spent = function() return bytes >= MAX_BYTES end,
    -- Returns whether it is spent now.
    count = function(stored)
      local size = #stored
      bytes = bytes + size
      if size > largest then largest = size end
      return bytes >= MAX_BYTES
    end,
    -- How many of `wanted` elements to read next.
    next_piece = function(wanted)
      local next = math.min(wanted, piece, math.max(1, math.floor((MAX_BYTES - bytes) / largest)))
      piece = math.min(piece * 8, MAX_PIECE)
      return next
    end,
  }
end
