"""Reads everything that a queue has, and stores it again in another one: with its ids, times, delays and attempts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from redis_message_queue.protocol.calls import Calls, ReplySlot
from redis_message_queue.protocol.operate.cancel import MARK_SECONDS
from redis_message_queue.protocol.operate.pages import PAGE, ListPart, PageReader, members_with_scores, scanned_pairs
from redis_message_queue.protocol.operate.record_pairs import pair
from redis_message_queue.protocol.port import Argument, Call
from redis_message_queue.stored import envelope
from redis_message_queue.stored.envelope import (
    HAS_ENTRY,
    HAS_EXTRAS,
    HAS_TENANT,
    HAS_TTL,
    HEADER_BYTES,
    TIME_AT,
    TTL_BYTES,
)

# In the order of an export: what is in flight comes first again, before what waits behind it.
TransferSource = Literal["processing", "pending", "delayed", "failed", "dead_letters", "completed"]
WAITING = ("processing", "pending", "delayed")
_NEW = ord("1")
_FIRST_DELIVERY = b"1:1"  # see lib/delivery_state.lua
_SCANNED = 100  # fields of a hash in one step
_NOBODY = bytes(5)  # the end of a lease that keeps the place of a message until its next attempt: see retry_later.lua


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredMessage:
    """A message with everything that the queue knows of it, in the bytes that Redis has."""

    state: str
    payload: bytes
    id: bytes = b""
    tenant: bytes = b""
    extras: bytes = b""  # its headers, as JSON
    published_us: int = 0
    ttl_us: int = 0
    due_us: int = 0  # of a message that is delayed, or keeps its place until its next attempt
    cancelled: bool = False  # whether the claim that meets it drops it
    deliveries: bytes = b""  # its entry in `deliveries`, if it has one
    record: bytes | None = None  # of a message in a terminal list

    @property
    def stored(self) -> bytes:
        """The message as it is stored; the time of a message is part of it."""
        flags, rest = (body := envelope.body(self.payload, self.tenant, self.extras, self.ttl_us))[0], body[1:]
        flags |= HAS_ENTRY if self.deliveries else 0
        return bytes((flags,)) + self.id + self.published_us.to_bytes(8, "big") + rest


def read_stored(state: str, stored: bytes, due_us: int = 0) -> TransferredMessage:
    """Take a stored message apart."""
    at, parts = HEADER_BYTES, {"tenant": b"", "extras": b""}
    for flag, name, size in ((HAS_TENANT, "tenant", 1), (HAS_EXTRAS, "extras", 2)):
        if stored[0] & flag:
            length = int.from_bytes(stored[at : at + size], "big")
            parts[name], at = stored[at + size : at + size + length], at + size + length
    has_ttl = bool(stored[0] & HAS_TTL)
    return TransferredMessage(
        state=state,
        payload=stored[at + TTL_BYTES * has_ttl :],
        id=stored[1:TIME_AT],
        published_us=int.from_bytes(stored[TIME_AT:HEADER_BYTES], "big"),
        ttl_us=int.from_bytes(stored[at : at + TTL_BYTES], "big") if has_ttl else 0,
        due_us=due_us,
        tenant=parts["tenant"],
        extras=parts["extras"],
    )


class Exporter:
    """Reads one source of a queue, page by page, the oldest messages first. The queue should be paused meanwhile."""

    def __init__(self, calls: Calls, source: TransferSource) -> None:
        self._pages, self._keys, self._source = PageReader(calls), calls.keys, source
        self._tenants: list[bytes] | None = None  # that are still to be read
        self._at = self._records_at = 0
        self._in_flight: list[bytes] | None = None  # fields of `processing` that are still to be read
        self._due_us: dict[bytes, int] = {}  # of those that keep their places until their next attempts
        self.is_over = False
        self.foreign = 0  # how many values were no messages of ours

    async def next_page(self) -> list[TransferredMessage]:
        """Return the next messages; `is_over` says whether these were the last."""
        if self._source == "pending":
            return await self._with_details(await self._next_pending())
        if self._source == "delayed":
            return await self._with_details(await self._next_delayed())
        if self._source == "processing":
            return await self._with_details(await self._next_in_flight())
        return await self._next_terminal()

    async def _next_pending(self) -> list[TransferredMessage]:
        """First the messages without a tenant, then tenant by tenant."""
        if self._tenants is None:
            stored = await self._pages.read_list(self._keys.pending, "right", self._at, PAGE)
            self._at += len(stored)
            if len(stored) < PAGE:
                (ring,) = await self._pages.send(("ZRANGE", self._keys.tenant_ring, 0, -1))
                self._tenants, self._at = [name for name in ring if name], 0
                self.is_over = not self._tenants
            return self._read(stored)
        lengths = await self._pages.send(*(("LLEN", self._pages.tenant_queue(name)) for name in self._tenants[:PAGE]))
        wanted, taken = 0, 0
        while taken < len(lengths) and (taken == 0 or wanted + lengths[taken] <= PAGE):
            wanted += lengths[taken]
            taken += 1
        parts = [ListPart(self._pages.tenant_queue(name), "right", self._at, PAGE) for name in self._tenants[:taken]]
        found = await self._pages.read(parts)
        if taken == 1 and len(found[0]) == PAGE:  # one tenant with more than a page
            self._at += PAGE
        else:
            self._tenants, self._at = self._tenants[taken:], 0
        self.is_over = not self._tenants
        return self._read(stored for page in found for stored in page)

    async def _next_delayed(self) -> list[TransferredMessage]:
        (found,) = await self._pages.send(("ZRANGE", self._keys.delayed, self._at, self._at + PAGE - 1, "WITHSCORES"))
        due = members_with_scores(found)
        self._at += len(due)
        self.is_over = len(due) < PAGE
        bodies = await self._pages.read_fields(self._keys.delayed_messages, [member for member, _ in due])
        return [
            replace(one, due_us=int(float(score)))
            for stored, (_, score) in zip(bodies, due, strict=True)
            if stored is not None
            for one in self._read([stored])
        ]

    async def _next_in_flight(self) -> list[TransferredMessage]:
        """The messages in flight in the order of their publication: a hash has none of its own."""
        if self._in_flight is None:
            self._in_flight, self._due_us = await self._fields_in_order(), await self._next_attempts()
        page, self._in_flight = self._in_flight[:PAGE], self._in_flight[PAGE:]
        self.is_over = not self._in_flight
        found = await self._pages.read_fields(self._keys.processing, page) if page else []
        return self._read(stored for stored in found if stored is not None)

    async def _fields_in_order(self) -> list[bytes]:
        published, cursor = {}, b"0"
        while True:
            ((cursor, scanned),) = await self._pages.send(("HSCAN", self._keys.processing, cursor, "COUNT", _SCANNED))
            for field, stored in scanned_pairs(scanned):
                published[field] = (stored[TIME_AT:HEADER_BYTES], field)
            if cursor == b"0":
                return sorted(published, key=lambda field: published[field])

    async def _next_attempts(self) -> dict[bytes, int]:
        """When each message in flight is due that keeps its place until its next attempt."""
        due: dict[bytes, int] = {}
        at, page = 0, [(b"", b"")]
        while page:
            (found,) = await self._pages.send(("ZRANGE", self._keys.leases, at, at + PAGE - 1, "WITHSCORES"))
            page = members_with_scores(found)
            at += len(page)
            due |= {token[:16]: int(float(score)) for token, score in page if token[31:] == _NOBODY}
        return due

    async def _next_terminal(self) -> list[TransferredMessage]:
        messages, records = self._pages.lists[self._source]
        payloads = await self._pages.read_list(messages, "right", self._at, PAGE)
        known = await self._pages.read_list(records, "right", self._records_at, PAGE)
        self.is_over = len(payloads) < PAGE
        page, last = [], -1
        for one in pair(payloads, known, whole=False):
            if one.payload is not None:
                last = max(last, one.record_place)
                record = known[one.record_place] if one.record_place >= 0 else None
                page.append(TransferredMessage(state=self._source, payload=one.payload, record=record))
        self._at += len(payloads)
        self._records_at += last + 1
        return page

    def _read(self, found: Iterable[bytes]) -> list[TransferredMessage]:
        page = []
        for stored in found:
            if envelope.is_message(stored):
                page.append(read_stored(self._source, stored))
            else:
                self.foreign += 1
        return page

    async def _with_details(self, page: list[TransferredMessage]) -> list[TransferredMessage]:
        if not page:
            return []
        ids = [one.id for one in page]
        entries = await self._pages.read_fields(self._keys.deliveries, ids)
        (marks,) = await self._pages.send(("ZMSCORE", self._keys.cancelled, *ids))
        # A first delivery has no entry; where the message waits again, it needs one.
        default = _FIRST_DELIVERY if self._source == "processing" else b""
        return [
            replace(
                one,
                deliveries=default if entry is None else entry,
                cancelled=mark is not None,
                due_us=self._due_us.get(one.id, one.due_us),
            )
            for one, entry, mark in zip(page, entries, marks, strict=True)
        ]


class Importer:
    """Stores messages again, each once: a marker remembers it for the deduplication window of the queue."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lists = PageReader(calls).lists
        self._window_ms = max(1, int(calls.options.message_deduplication_log_ttl_seconds * 1000))

    async def store(self, messages: Sequence[TransferredMessage]) -> list[bool]:
        """Store waiting and delayed messages in one script: all or none. Returns for each whether it was new."""
        details: list[Argument] = []
        for one in messages:
            details += (str(one.due_us or ""), one.deliveries, self._known(one), one.stored)
        settings = (self._calls.keys.tenant_pending(""), self._window_ms, MARK_SECONDS * 1000)
        return await self._call("restore", {}, settings, details, [one.id.hex() for one in messages])

    def _known(self, message: TransferredMessage) -> str:
        """What restore.lua has to know of it. Without leases, nobody would look for a message that keeps its place."""
        leased = self._calls.options.message_visibility_timeout_seconds is not None
        keeps_place = leased and message.state == "processing" and message.due_us
        return ("c" if message.cancelled else "") + ("p" if keeps_place else "")

    async def store_in_list(self, source: str, messages: Sequence[tuple[TransferredMessage, str]]) -> list[bool]:
        """Add messages to a terminal list in one script, each with the key that tells it from others."""
        payloads, records = self._lists[source]
        details = [part for one, _ in messages for part in (one.payload, one.record or b"")]
        keys = [f"{source}:{key}" for _, key in messages]
        return await self._call("append", {"dlq": payloads, "records": records}, (self._window_ms,), details, keys)

    async def _call(
        self,
        name: str,
        given: dict[str, str],
        settings: tuple[Argument, ...],
        details: Sequence[Argument],
        keys: list[str],
    ) -> list[bool]:
        calls = self._calls
        await calls.prepare()
        markers = tuple(calls.keys.deduplication(f"imported:{key}") for key in keys)

        def store(slot: ReplySlot) -> Call:
            holder = (slot.holder,) if name == "restore" else ()
            return calls.command(name, slot, *settings, *holder, **given), markers, (slot.next_call(), *details)

        return [mark == _NEW for mark in await calls.numbered(store)]
