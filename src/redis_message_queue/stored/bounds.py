"""How much one script or one reply of the server carries: everybody else waits while Redis copies it.

The loader gives `LUA_BOUNDS` to the scripts that mention them. A queue's own limits are options, and are not here.
"""

from __future__ import annotations

MAX_MESSAGES = 1_000  # or steps: 200,000 dead letters at once took 1.2 s
MAX_BYTES = 4_000_000  # of messages together, or one message if that is larger: 200 messages of 1 MB took 4 s
MAX_PIECE = 64  # elements that a script reads together from a list, which does not say how large they are

LUA_BOUNDS = {
    "MAX_MESSAGES": str(MAX_MESSAGES),
    "MAX_BYTES": str(MAX_BYTES),
    "MAX_PIECE": str(MAX_PIECE),
    "LARGE": str(MAX_BYTES // MAX_PIECE),  # bytes of a message; of smaller ones, a whole piece fits
    "TOO_MANY": f"'at most {MAX_MESSAGES:,} messages in one call'",
}
