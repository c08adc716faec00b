-- lib/bounded.lua: how many messages to read at once, by their number and their bytes.
-- Everything that a script reads is copied while the others wait: 200 messages of 1 MB took 4 s. A list does not say
-- how large its elements are, so they are read in pieces, which begin with one and become smaller if one was large.
local MOST_BYTES, LARGEST_PIECE = 4000000, 64
local bytes_read, largest, piece = 0, 1, 1

local function next_piece(wanted)
  local now = math.min(wanted, piece, math.max(1, math.floor((MOST_BYTES - bytes_read) / largest)))
  piece = math.min(piece * 8, LARGEST_PIECE)
  return now
end

-- So much more was read.
local function count_bytes(stored)
  bytes_read = bytes_read + #stored
  if #stored > largest then largest = #stored end
end

local function is_much()
  return bytes_read >= MOST_BYTES
end
