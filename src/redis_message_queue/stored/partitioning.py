"""The partition of a queue that a key belongs to, the same in every process and every release."""

from __future__ import annotations

import hashlib


def partition_of(key: str, count: int) -> int:
    """Return the number of the partition for a key, from 0.

    It is the jump consistent hash of Lamping and Veach over the first 8 bytes of the key's SHA-256 (of its UTF-8, as a
    big-endian number). From n to m partitions it moves (m - n) / m of the keys, all of them to the new partitions.
    """
    state = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    place, jump = -1, 0
    while jump < count:
        place = jump
        state = (state * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        jump = int((place + 1) * (float(1 << 31) / float((state >> 33) + 1)))
    return place
