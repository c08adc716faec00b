"""Matches payloads with the records that are kept about them."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from redis_message_queue.process.identity import consumer_name
from redis_message_queue.stored import headers
from redis_message_queue.stored.envelope import PROCESS_BYTES, Envelope, is_message, tenant_text
from redis_message_queue.values.messages import MessageRecord, moment
from redis_message_queue.values.plain_values import printable

_NO_NAMES: Mapping[bytes, str] = MappingProxyType({})


class RecordPair(NamedTuple):
    """A payload and its record, each with its place in its list. One of them may be missing."""

    payload: bytes | None
    place: int
    record: dict[str, Any] | None
    record_place: int


def digest(payload: bytes) -> str:
    """Return what a record keeps of its payload."""
    return hashlib.sha1(payload, usedforsecurity=False).hexdigest()


def pair(payloads: Sequence[bytes], records: Sequence[bytes], *, whole: bool) -> Iterator[RecordPair]:
    """Yield each payload with its record, in the order of both lists.

    The list of payloads decides: an operator may have trimmed either list by hand. A record whose payload is gone
    stands alone, and so does a payload without a record. Unless these are the ``whole`` lists, records after the last
    payload are left out, because they may belong to other payloads.
    """
    read = [_read(record) for record in records]
    places: defaultdict[tuple[Any, Any], deque[int]] = defaultdict(deque)
    for place, record in enumerate(read):
        if record is not None:
            places[record.get("bytes"), record.get("sha1")].append(place)
    behind = 0
    for place, payload in enumerate(payloads):
        candidates = places[len(payload), digest(payload)]
        while candidates and candidates[0] < behind:
            candidates.popleft()
        if not candidates:
            yield RecordPair(payload, place, None, -1)
            continue
        mine = candidates.popleft()
        for lonely in range(behind, mine):
            yield RecordPair(None, -1, read[lonely], lonely)
        yield RecordPair(payload, place, read[mine], mine)
        behind = mine + 1
    for lonely in range(behind, len(read)) if whole else ():
        yield RecordPair(None, -1, read[lonely], lonely)


def _read(record: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(record.decode("utf-8", "surrogateescape"))  # a tenant need not be UTF-8
    except (ValueError, RecursionError):  # written by another program
        return None
    return parsed if isinstance(parsed, dict) else None


def claimed_by(record: dict[str, Any] | None) -> bytes:
    """Return the process that held a message last, if its record has that instead of a name; else nothing."""
    by = (record or {}).get("by")
    try:
        process = bytes.fromhex(by) if isinstance(by, str) else b""
    except ValueError:  # another program wrote it
        process = b""
    return process if len(process) == PROCESS_BYTES else b""


def record_of(one: RecordPair, *, decode: bool, names: Mapping[bytes, str] = _NO_NAMES) -> MessageRecord:
    """Return what is known of a message that has left the queue. ``names`` are those of processes."""
    record = one.record or {}
    return MessageRecord(
        payload=None if one.payload is None else readable(one.payload, decode=decode),
        id=headers.text_of(record.get("id")),
        tenant=tenant_text(tenant_bytes(record)) or None,
        delivery_count=_count(record.get("deliveries")),
        published_at=_time(record.get("published")),
        claimed_at=_time(record.get("claimed")),
        finished_at=_time(record.get("finished")),
        reason=headers.text_of(record.get("reason")),
        error_type=headers.text_of(record.get("error_type")),
        error=headers.text_of(record.get("error")),
        traceback=headers.text_of(record.get("traceback")),
        replay_of=headers.replay_of(record),
        headers=headers.decode(record) or None,
        consumer=_consumer(record, names),
    )


def single_record(stored: bytes) -> MessageRecord | None:
    """Return what a record tells without its payload; None for what another program wrote."""
    record = _read(stored)
    return None if record is None else record_of(RecordPair(None, -1, record, 0), decode=True)


def _consumer(record: dict[str, Any], names: Mapping[bytes, str]) -> str | None:
    """Return who held the message last: it wrote its name, or a claim has found its lease."""
    name = headers.text_of(record.get("consumer"))
    if name:
        return printable(name)
    process = claimed_by(record)
    return names.get(process) or consumer_name(process) if process else None


def tenant_bytes(record: dict[str, Any]) -> bytes:
    """Return the tenant of a record, in the bytes that Redis has."""
    tenant = record.get("tenant")
    if not isinstance(tenant, str):
        return b""
    try:
        return tenant.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # it was written as an escape, which stands for no bytes
        return tenant.encode("utf-8", "backslashreplace")


def record_of_stored(stored: bytes, *, decode: bool, due_us: float | None = None) -> MessageRecord:
    """Return what a stored message says about itself."""
    if not is_message(stored):
        return MessageRecord(payload=readable(stored, decode=decode), reason="foreign")
    envelope = Envelope(stored)
    return MessageRecord(
        payload=readable(envelope.payload, decode=decode),
        id=envelope.id.hex(),
        tenant=envelope.tenant,
        published_at=moment(envelope.published_at),
        due_at=None if due_us is None else moment(due_us / 1_000_000),
        replay_of=headers.replay_of(envelope.extras),
        headers=headers.decode(envelope.extras) or None,
    )


def _count(value: Any) -> int | None:
    """Return None for what is no number of deliveries: another program may have written it."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def readable(payload: bytes, *, decode: bool) -> str | bytes:
    """Return the payload as text if the client decodes; bytes that are not UTF-8 stay bytes."""
    try:
        return payload.decode() if decode else payload
    except UnicodeDecodeError:
        return payload


def _time(microseconds: Any) -> Any:
    """Return None for a value that is not a time: another program may have written it."""
    try:
        return moment(int(microseconds) / 1_000_000)
    except (TypeError, ValueError, OverflowError):
        return None
