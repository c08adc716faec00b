"""Finds one message by its id: where it is now, and what the journal tells of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from redis_message_queue.protocol.operate.pages import FIRST_SCAN, PAGE, TENANTS, ListPart, PageReader, scanned_pairs
from redis_message_queue.protocol.operate.record_pairs import record_of_stored
from redis_message_queue.stored import envelope
from redis_message_queue.stored.bounds import MAX_BYTES
from redis_message_queue.values.checks import whole_number
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError, JournalError
from redis_message_queue.values.messages import MessageRecord, TraceEntry, moment
from redis_message_queue.values.plain_values import brief, is_text, plain

_ENTERED = (b"published", b"redriven", b"duplicate")  # the first that happens to a message
_NAMED = ("n", "at", "event", "id", "tenant", "payload", "by")  # what an entry has fields for, or does not show
_Fields = dict[bytes, bytes]
_FIRST_ENTRIES = 50  # of a journal, which may contain payloads of any size


@dataclass(frozen=True, slots=True)
class JournalPart:
    """What a part of the journal tells of a message, the oldest first, each with the id of its entry.

    ``is_whole`` is False if there were more entries than were to be read. ``reached`` is the id of the last entry that
    was read, None if there was none.
    """

    entries: list[tuple[bytes, TraceEntry]]
    is_whole: bool
    reached: bytes | None = None


@dataclass(frozen=True, slots=True)
class MessageLocation:
    """Where a message is in a part, and what is stored beside it there."""

    record: MessageRecord
    tenant: bytes = b""
    token: bytes | None = None  # of its lease, or of its claim without a lease
    failures: int = 0  # under a retry policy
    ahead: int = 0  # how many messages of its tenant are before it


class MessageFinder:
    """Finds one message of a queue. Each step reads a bounded part of it."""

    def __init__(self, pages: PageReader, *, decode: bool, leased: bool) -> None:
        self._pages = pages
        self._keys = pages.keys
        self._decode = decode
        self._leased = leased

    async def trace(self, message_id: str, max_entries: int) -> list[TraceEntry]:
        """Return what happened to a message, the oldest first, as far as the newest entries of the journal tell."""
        check_id(message_id)
        whole_number("max_entries", max_entries)
        if not await self.has_journal():
            raise JournalError(
                "this queue has no journal, which is where the history of a message is; make the queue with "
                "journal=True before you publish"
            )
        part = await self.search_journal(message_id, max_entries=max_entries)
        return [entry for _, entry in part.entries]

    async def has_journal(self) -> bool:
        """Return whether the journal has entries."""
        (length,) = await self._pages.send(("XLEN", self._keys.journal))
        return bool(length)

    async def search_journal(
        self, message_id: str, *, max_entries: int, first: bytes = b"-", last: bytes = b"+", forward: bool = False
    ) -> JournalPart:
        """Return what a part of the journal tells of a message, from entry ``first`` to entry ``last``.

        It reads backwards, until the message entered the queue, or ``forward`` from the beginning of the part.
        """
        found, is_whole, reached = await self._search(
            check_id(message_id).hex().encode(), max_entries, first, last, forward
        )
        names = await self._pages.consumers(_process(entry) for _, entry in found)
        told = [(number, _trace_entry(entry, names.get(_process(entry)))) for number, entry in found]
        return JournalPart(told if forward else told[::-1], is_whole, reached)

    async def _search(
        self, wanted: bytes, max_entries: int, first: bytes, last: bytes, forward: bool
    ) -> tuple[list[tuple[bytes, _Fields]], bool, bytes | None]:
        """Return the entries of a message, as they were read, whether these are all, and the last id of any."""
        found: list[tuple[bytes, _Fields]] = []
        number: bytes | None = None
        count, left = _FIRST_ENTRIES, max_entries
        while left > 0:
            count = min(count, left)
            verb, ends = ("XRANGE", (first, last)) if forward else ("XREVRANGE", (last, first))
            (entries,) = await self._pages.send((verb, self._keys.journal, *ends, "COUNT", count))
            for number, fields in entries:
                entry = dict(zip(fields[::2], fields[1::2], strict=False))
                if entry.get(b"id") == wanted:
                    found.append((number, entry))
                    if entry.get(b"event") in _ENTERED and not forward:
                        return found, True, number
            left -= len(entries)
            if len(entries) < count:
                return found, True, number
            first, last = (b"(" + entries[-1][0], last) if forward else (first, b"(" + entries[-1][0])
            count = _entries_that_fit(entries)
        return found, False, number

    async def get(self, message_id: str, max_messages: int) -> MessageRecord | None:
        """Return what is known of a message that is in the queue, and where it is; None if it was not found."""
        location, _ = await self.locate(message_id, max_messages)
        return location.record if location else None

    async def locate(
        self, message_id: str, max_messages: int, max_bytes: float = math.inf, tenant: bytes | None = None
    ) -> tuple[MessageLocation | None, bool]:
        """Return where a message is, and whether everything was searched if it was not found.

        With a ``tenant`` only the messages of this one are searched among those that wait, b"" for those without one.
        """
        wanted = check_id(message_id)
        whole_number("max_messages", max_messages)
        keys, send = self._keys, self._pages.send
        (held,) = await self._pages.read_fields(keys.processing, [wanted])
        (delayed,) = await self._pages.read_fields(keys.delayed_messages, [wanted])
        (entry,), due = await send(("HMGET", keys.deliveries, wanted), ("ZSCORE", keys.delayed, wanted))
        token = None if self._leased else await self._unleased(wanted)
        if token is not None:
            (held,) = await self._pages.read_fields(keys.processing, [token])
        if held is not None:
            token = token or await self._lease_of(wanted)
            process = envelope.process_of(token or b"")
            names = await self._pages.consumers([process])
            record = self._record(held, "processing", _count(entry, 0, 1), consumer=names.get(process))
            return MessageLocation(record, _tenant(held), token, _count(entry, 2, 0)), True
        if delayed is not None:
            record = self._record(delayed, "delayed", _count(entry, 0, 0), due_us=None if due is None else float(due))
            return MessageLocation(record, _tenant(delayed), failures=_count(entry, 2, 0)), True
        waiting, is_whole = await self._waiting(wanted, max_messages, max_bytes, tenant)
        if waiting is None:
            return None, is_whole
        stored, tenant, ahead = waiting
        ((mark,),) = await send(("ZMSCORE", keys.cancelled, wanted))
        record = replace(self._record(stored, "pending", _count(entry, 0, 0)), cancelled=mark is not None)
        return MessageLocation(record, tenant, failures=_count(entry, 2, 0), ahead=ahead), True

    def _record(
        self, stored: bytes, state: str, count: int, *, consumer: str | None = None, due_us: float | None = None
    ) -> MessageRecord:
        record = record_of_stored(stored, decode=self._decode, due_us=due_us)
        return replace(record, state=state, delivery_count=count, consumer=consumer)

    async def _lease_of(self, wanted: bytes) -> bytes | None:
        """Return the token of the lease, None if it has expired."""
        return await self._scan("ZSCAN", self._keys.leases, wanted, PAGE)

    async def _unleased(self, wanted: bytes) -> bytes | None:
        """Return the token of a message that was claimed without a lease."""
        return await self._scan("HSCAN", self._keys.processing, wanted, FIRST_SCAN)

    async def _scan(self, verb: str, key: str, wanted: bytes, page: int) -> bytes | None:
        cursor = b"0"
        while True:
            ((cursor, scanned),) = await self._pages.send((verb, key, cursor, "COUNT", page))
            for member, _ in scanned_pairs(scanned):
                if len(member) == envelope.TOKEN_BYTES and member.startswith(wanted):
                    return member
            if cursor == b"0":
                return None

    async def _waiting(
        self, wanted: bytes, max_messages: int, max_bytes: float, tenant: bytes | None
    ) -> tuple[tuple[bytes, bytes, int] | None, bool]:
        """Search the messages that wait, from the next one on: those without a tenant, then tenant by tenant.

        Returns the stored message, its tenant and how many are before it; and whether all were searched.
        """
        names, turn = [tenant or b""], 0
        while names:
            keys: list[Any] = [self._pages.tenant_queue(name) if name else self._keys.pending for name in names]
            firsts = dict.fromkeys(keys, 0)
            while keys:
                if max_messages <= 0 or max_bytes <= 0:
                    return None, False
                count = max(1, min(PAGE, max_messages) // len(keys))
                pages = await self._pages.read([ListPart(key, "right", firsts[key], count) for key in keys])
                for key, page in zip(keys, pages, strict=True):
                    for place, stored in enumerate(page, firsts[key]):
                        if stored[1 : envelope.TIME_AT] == wanted:
                            return (stored, _tenant(stored), place), True
                    firsts[key] += len(page)
                    max_messages -= len(page)
                    max_bytes -= sum(map(len, page))
                keys = [key for key, page in zip(keys, pages, strict=True) if len(page) == count]
            if tenant is not None:
                break
            (ring,) = await self._pages.send(("ZRANGE", self._keys.tenant_ring, turn, turn + TENANTS - 1))
            names, turn = [name for name in ring if name], turn + TENANTS
        return None, True


def check_id(message_id: Any) -> bytes:
    """Return the bytes of a message id; raise for what cannot be one."""
    if not is_text(message_id):
        raise ConfigurationTypeError(f"message_id must be a str of 32 hexadecimal digits, not {brief(message_id)}")
    try:
        found = bytes.fromhex(plain(message_id))
    except ValueError:
        found = b""
    if len(found) != envelope.ID_BYTES:
        raise ConfigurationError(f"message_id must be 32 hexadecimal digits, not {brief(message_id)}")
    return found


def _entries_that_fit(read: list[Any]) -> int:
    """Return how many entries to read next, if they are as large as those that were read."""
    size = sum(len(value) for _, fields in read for value in fields)
    return max(1, min(PAGE, MAX_BYTES * len(read) // max(size, 1)))


def _count(entry: bytes | None, place: int, default: int) -> int:
    """Return a count of an entry: all deliveries, or the failures; without one, or if it is damaged, the default."""
    counts = (entry or b"").split(b":")
    found = counts[place] if place < len(counts) else b""
    return int(found) if found.isdigit() and len(found) < 16 else default


def _tenant(stored: bytes) -> bytes:
    """Return the tenant of a stored message, in the bytes that Redis has."""
    if not envelope.is_message(stored) or not stored[0] & envelope.HAS_TENANT:
        return b""
    first = envelope.HEADER_BYTES + 1
    return stored[first : first + stored[envelope.HEADER_BYTES]]


def _process(entry: _Fields) -> bytes:
    """Return the process that an entry names, empty if it names none."""
    try:
        return bytes.fromhex(_text(entry.get(b"by", b"")))
    except ValueError:  # another program wrote it
        return b""


def _trace_entry(entry: _Fields, consumer: str | None) -> TraceEntry:
    texts = {_text(name): _text(value) for name, value in entry.items()}
    at = texts.get("at", "")
    return TraceEntry(
        event=texts.get("event", ""),
        at=moment(int(at) / 1_000_000) if at.isdigit() else None,
        tenant=texts.get("tenant") or None,
        consumer=consumer,
        details={name: value for name, value in texts.items() if name not in _NAMED and value},
    )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
