"""Reads the replies that our scripts usually give; every other reply is left to redis-py."""

from __future__ import annotations

from typing import Any, Final

INTEGER, STRING, _NULL = b":$_"  # the first bytes of replies

NOT_SENT: Final = object()
"""Stands for the reply to a command that was not sent: redis-py must send it."""

NOTHING_SENT: Final = [NOT_SENT]

NOT_SIMPLE: Final = object()
"""A reply of another kind, such as an error, a list or a push message, or the beginning of one."""

INCOMPLETE: Final = object()
"""The beginning of a string; the number beside it says how many bytes there must be."""


def read_simple(data: bytes, at: int) -> tuple[Any, int]:
    """Return the reply that begins at a place in the data, and the place behind it.

    Raises ValueError for a length or a number that is none: the connection cannot be used any more.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        return NOT_SIMPLE, at
    kind, start = data[at], end + 2
    if kind == STRING:
        length = int(data[at + 1 : end])
        if length < 0:
            return None, start
        stop = start + length
        return (data[start:stop] if stop + 2 <= len(data) else INCOMPLETE), stop + 2
    if kind == INTEGER:
        return int(data[at + 1 : end]), start
    return (None, start) if kind == _NULL else (NOT_SIMPLE, at)
