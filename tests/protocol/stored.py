"""A stored message, read byte by byte: flags, id, time, tenant, extras, payload."""

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

HAS_TENANT, HAS_EXTRAS, HAS_TTL = 0x01, 0x04, 0x08
PLAIN = 0x80  # the flags of a message with a payload alone


class Entry(NamedTuple):
    """What the deliveries hash keeps of a message. Most are delivered once and never get one."""

    attempts: int
    times: int
    failures: int = 0


IN_LINE, IN_FLIGHT = Entry(0, 0), Entry(1, 1)  # what an entry would say, where there is none


def is_message(stored: bytes) -> bool:
    """What envelope.py packs: flags, id, a time of this age, and a tenant and extras if the flags say so."""
    if len(stored) < 25 or not 0x80 <= stored[0] <= 0x8F or stored[17] != 0:
        return False
    return _payload_at(stored) <= len(stored)


def _payload_at(stored: bytes) -> int:
    """Where the payload begins; beyond the end if the bytes end before that."""
    at, beyond = 25, len(stored) + 1
    if stored[0] & HAS_TENANT:
        at += 1 + (stored[at] if at < len(stored) else beyond)
    if stored[0] & HAS_EXTRAS:
        at += 2 + (int.from_bytes(stored[at : at + 2], "big") if at + 2 <= len(stored) else beyond)
    if stored[0] & HAS_TTL:
        at += 8
    return at


def id_of(stored: bytes) -> bytes:
    return stored[1:17]


def time_of(stored: bytes) -> int:
    """When it was published, in microseconds of the server's clock."""
    return int.from_bytes(stored[17:25], "big")


def tenant_of(stored: bytes) -> bytes:
    """Nothing for a message without a tenant."""
    return stored[26 : 26 + stored[25]] if stored[0] & HAS_TENANT else b""


def extras_of(stored: bytes) -> dict[str, Any]:
    """What travels with the payload."""
    if not stored[0] & HAS_EXTRAS:
        return {}
    start = 25 + (1 + stored[25] if stored[0] & HAS_TENANT else 0)
    length = int.from_bytes(stored[start : start + 2], "big")
    extras: dict[str, Any] = json.loads(stored[start + 2 : start + 2 + length])
    return extras


def payload_of(stored: bytes) -> bytes:
    return stored[_payload_at(stored) :]


def packed(messages: Sequence[bytes]) -> bytes:
    """Several in one text, as a claim gives them: an array of strings in MessagePack."""
    count = len(messages)
    parts = [bytes([0x90 + count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")]
    for one in messages:
        size = next(size for size in (1, 2, 4) if len(one) < 1 << (8 * size))
        kind = {1: b"\xd9", 2: b"\xda", 4: b"\xdb"}[size]
        parts += [bytes([0xA0 + len(one)])] if len(one) < 32 else [kind, len(one).to_bytes(size, "big")]
        parts.append(one)
    return b"".join(parts)


def unpacked(text: bytes) -> list[bytes]:
    """The same, read byte by byte."""
    source, messages = BytesIO(text), []
    kind = source.read(1)[0]
    count = kind - 0x90 if kind < 0xA0 else int.from_bytes(source.read(2), "big")
    for _ in range(count):
        kind = source.read(1)[0]
        widths = {0xD9: 1, 0xDA: 2, 0xDB: 4}
        length = kind - 0xA0 if kind < 0xC0 else int.from_bytes(source.read(widths[kind]), "big")
        messages.append(source.read(length))
    assert not source.read()
    return messages
