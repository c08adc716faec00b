-- lib/nonce.lua: what makes the lease of this call unlike every other one.
-- Given `holder`, the 15 bytes that name the caller's slot (host, process, chance), and `call`, its number: together 20
-- bytes that no other claim has. A token is the id of the message and these; it names the holder, too.
local nonce = holder .. struct.pack('>I5', tonumber(call))
