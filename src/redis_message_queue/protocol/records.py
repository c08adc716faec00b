"""What operators read: lists and the records beside them, put together again whatever was cut by hand."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from redis_message_queue import headers
from redis_message_queue.envelope import Envelope, tenant_text
from redis_message_queue.messages import MessageRecord, moment


class Entry(NamedTuple):
    """A payload and its record, each with its place in its list; one of them may be missing."""

    payload: bytes | None
    place: int
    note: dict[str, Any] | None
    note_place: int


def digest(payload: bytes) -> str:
    """What a record remembers of its payload."""
    return hashlib.sha1(payload, usedforsecurity=False).hexdigest()


def pair(payloads: Sequence[bytes], notes: Sequence[bytes], *, whole: bool) -> Iterator[Entry]:
    """Put each payload beside its record, in the order of both lists.

    The list of payloads is the truth. A record whose payload is gone stands alone, and so does a payload that nobody
    has a record of. Where these are not the ``whole`` lists, records behind the last payload may belong to others.
    """
    read = [_read(note) for note in notes]
    places: defaultdict[tuple[Any, Any], deque[int]] = defaultdict(deque)
    for place, note in enumerate(read):
        if note is not None:
            places[note.get("bytes"), note.get("sha1")].append(place)
    behind = 0
    for place, payload in enumerate(payloads):
        candidates = places[len(payload), digest(payload)]
        while candidates and candidates[0] < behind:
            candidates.popleft()
        if not candidates:
            yield Entry(payload, place, None, -1)
            continue
        mine = candidates.popleft()
        for lonely in range(behind, mine):
            yield Entry(None, -1, read[lonely], lonely)
        yield Entry(payload, place, read[mine], mine)
        behind = mine + 1
    for lonely in range(behind, len(read)) if whole else ():
        yield Entry(None, -1, read[lonely], lonely)


def _read(note: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(note.decode("utf-8", "surrogateescape"))  # a tenant need not be UTF-8
    except (ValueError, RecursionError):  # somebody else's bytes
        return None
    return parsed if isinstance(parsed, dict) else None


def record_of(entry: Entry, *, decode: bool) -> MessageRecord:
    """What a list and its record know of a message that has left."""
    note = entry.note or {}
    return MessageRecord(
        payload=None if entry.payload is None else readable(entry.payload, decode=decode),
        id=note.get("id"),
        tenant=tenant_text(tenant_bytes(note)) or None,
        delivery_count=note.get("deliveries"),
        published_at=_time(note.get("published")),
        claimed_at=_time(note.get("claimed")),
        finished_at=_time(note.get("finished")),
        reason=_text(note.get("reason")),
        error_type=_text(note.get("error_type")),
        error=_text(note.get("error")),
        replay_of=note.get("replay_of"),
        headers=headers.found_in(note) or None,
    )


def tenant_bytes(note: dict[str, Any]) -> bytes:
    """The tenant that a record names, as it is in Redis."""
    tenant = note.get("tenant")
    if not isinstance(tenant, str):
        return b""
    try:
        return tenant.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no bytes lead to this: it was written as an escape
        return tenant.encode("utf-8", "backslashreplace")


def record_of_stored(stored: bytes, *, decode: bool, due_us: float | None = None) -> MessageRecord:
    """What a stored message says of itself."""
    if len(stored) < 25 or not stored[0] & 0x80:
        return MessageRecord(payload=readable(stored, decode=decode), reason="foreign")
    envelope = Envelope(stored)
    return MessageRecord(
        payload=readable(envelope.payload, decode=decode),
        id=envelope.id.hex(),
        tenant=envelope.tenant,
        published_at=moment(envelope.published_at),
        due_at=None if due_us is None else moment(due_us / 1_000_000),
        replay_of=envelope.extras.get("replay_of"),
        headers=headers.found_in(envelope.extras) or None,
    )


def _text(value: Any) -> Any:
    """Text that any program can write down, also where the record is damaged."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def readable(payload: bytes, *, decode: bool) -> str | bytes:
    """As the client decodes; what cannot be decoded stays as it is."""
    try:
        return payload.decode() if decode else payload
    except UnicodeDecodeError:
        return payload


def _time(microseconds: Any) -> Any:
    """None also for what is no time: somebody else may have written there."""
    try:
        return moment(int(microseconds) / 1_000_000)
    except (TypeError, ValueError, OverflowError):
        return None
