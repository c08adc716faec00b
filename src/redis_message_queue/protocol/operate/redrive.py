"""Turns dead letters, or failed messages, into waiting messages again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis_message_queue.protocol.calls import ReplySlot, publishing_rules
from redis_message_queue.protocol.event_emitter import EventEmitter
from redis_message_queue.protocol.operate.pages import PAGE, READ_PAGE, PageReader
from redis_message_queue.protocol.operate.record_pairs import RecordPair, digest, pair, record_of, tenant_bytes
from redis_message_queue.protocol.port import Argument, Call, split
from redis_message_queue.protocol.publish.confirm import FULL
from redis_message_queue.protocol.publish.message_builder import MessageBuilder
from redis_message_queue.protocol.publish.sender import chunk_ids
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored import envelope, headers
from redis_message_queue.stored.bounds import MAX_BYTES
from redis_message_queue.stored.codecs import decode_with
from redis_message_queue.values.checks import flag, required_function, whole_number
from redis_message_queue.values.errors import QueueBackpressureError
from redis_message_queue.values.events import EventOperation
from redis_message_queue.values.messages import MessageRecord, RedriveSummary

# A script that removes elements deep in a list walks to each of them, and once more over everything on the way.
_DEEP = 10_000
_MOST_DEEP = 50  # messages that one script removes from there
_PLACES_PER_MESSAGE = 1_000  # the deeper the messages are, the more of them one walk has to be worth


class _Chosen(NamedTuple):
    """A message to redrive, and where it and its record are, counted from the right ends of their lists."""

    pair: RecordPair
    payload: bytes
    place: int
    record: bytes | None
    record_place: int

    def moved(self, places: int, record_places: int) -> _Chosen:
        """Return where it is after this many elements to its right were removed."""
        record_place = self.record_place if self.record is None else self.record_place - record_places
        return self._replace(place=self.place - places, record_place=record_place)


@dataclass(slots=True)
class _Position:
    """How far the two lists have been read, counted from their right ends."""

    messages: str
    records: str
    at: int = 0
    records_at: int = 0
    is_end: bool = False


class Redriver:
    """Publishes messages of the dead-letter list or the failed list again, the oldest first."""

    def __init__(self, store: Store, pages: PageReader, builder: MessageBuilder | None, emitter: EventEmitter) -> None:
        self._calls = store.calls
        self._decode = store.decodes
        self._pages = pages
        self._builder = builder  # None if the queue has no deduplication
        self._emitter = emitter

    async def redrive(
        self,
        source: str,
        max_messages: int | None,
        where: Callable[[MessageRecord], bool] | None,
        dry_run: bool,
        respect_deduplication: bool,
    ) -> RedriveSummary:
        """Publish messages again, each with a new id and no deliveries. Returns how many matched and were redriven."""
        whole_number("max_messages", max_messages, optional=True)
        if where is not None:
            required_function("where", where)
        flag("dry_run", dry_run)
        flag("respect_deduplication", respect_deduplication)
        position, chosen, marks = _Position(*self._pages.lists[source]), list[_Chosen](), Counter[str]()
        matched = 0
        while not position.is_end and (max_messages is None or matched < max_messages):
            for one in await self._next_page(position):
                if matched == max_messages:
                    break
                if await self._matches(one, where):
                    matched += 1
                    if not dry_run:
                        chosen.append(one)
            if position.is_end or matched == max_messages or _is_worth_the_walk(chosen, position.at):
                marks.update(await self._send_back(source, position, chosen, respect_deduplication))
                chosen = []
        return RedriveSummary(matched=matched, redriven=marks["1"], suppressed=marks["0"])

    async def _next_page(self, position: _Position) -> list[_Chosen]:
        """Return the next messages with their records, and move the position past them."""
        arguments = (PAGE, MAX_BYTES, "right", position.at, PAGE)
        full, payloads = await self._calls.call(READ_PAGE, arguments, extra_keys=(position.messages,))
        position.is_end = not full and len(payloads) < PAGE
        records = await self._pages.read_list(position.records, "right", position.records_at, PAGE)
        page = []
        for one in pair(payloads, records, whole=False):
            if one.payload is not None:
                has_record, record_place = one.record_place >= 0, position.records_at + one.record_place
                record = (records[one.record_place], record_place) if has_record else (None, -1)
                page.append(_Chosen(one, one.payload, position.at + one.place, *record))
        position.at += len(payloads)
        position.records_at += 1 + max((one.pair.record_place for one in page), default=-1)
        return page

    async def _matches(self, one: _Chosen, where: Callable[[MessageRecord], bool] | None) -> bool:
        if where is None:
            return True
        answer = await self._calls.port.call_user(where, record_of(one.pair, decode=self._decode))
        return bool(answer.unwrap())

    async def _send_back(
        self, source: str, position: _Position, chosen: Sequence[_Chosen], respect_deduplication: bool
    ) -> str:
        """Redrive the chosen messages, in as many scripts as it takes. Returns a mark for each: '1' if it went."""
        marks, gone, records_gone = "", 0, 0
        most = PAGE if position.at <= _DEEP else _MOST_DEEP
        for some in split(chosen, [len(one.payload) for one in chosen], most, MAX_BYTES):
            step = [one.moved(gone, records_gone) for one in some]
            new = await self._call(source, step, respect_deduplication)
            went = [one for one, mark in zip(some, new, strict=True) if mark == "1"]
            gone, records_gone = gone + len(went), records_gone + sum(one.record is not None for one in went)
            marks += new
        position.at -= gone
        position.records_at -= records_gone
        return marks

    async def _call(self, source: str, chosen: list[_Chosen], respect_deduplication: bool) -> str:
        calls, new_id = self._calls, self._calls.port.new_id()
        markers, details = await self._details(chosen, respect_deduplication)
        *rules, _ = publishing_rules(calls.options)  # a full queue refuses, whatever its policy is
        messages, records = self._pages.lists[source]

        def redrive(slot: ReplySlot) -> Call:
            settings = (calls.keys.tenant_pending(""), *rules)
            command = calls.command("redrive", slot, *settings, dlq=messages, records=records)
            return command, markers, (slot.next_call(), new_id[: envelope.BASE_BYTES], *details)

        reply: bytes = await calls.numbered(redrive)
        if reply == FULL:
            raise QueueBackpressureError(
                "the queue is full, and these messages stay where they are; try again when consumers have "
                "caught up, or with a smaller max_messages",
                queue=self._emitter.queue,
                operation="redrive",
            )
        marks = reply.decode()
        for message_id, mark in zip(chunk_ids(new_id, len(marks)), marks, strict=True):
            if mark == "1":
                await self._emitter.emit(EventOperation.REDRIVEN, message_id=message_id.hex())
        return marks

    def _published(self, payload: bytes) -> Any:
        """Return what was given to `publish`, None if it was never a message of ours."""
        codec = None if self._builder is None else self._builder.codec
        if codec is None:
            return _as_published(payload)
        try:
            return decode_with(codec, payload)
        except Exception:  # a codec may raise anything; such a message has no key
            return None

    async def _details(
        self, chosen: Sequence[_Chosen], respect_deduplication: bool
    ) -> tuple[tuple[str, ...], list[Argument]]:
        """Return the keys that remember deduplication keys, and what the script needs to know of each message."""
        markers: dict[str, int] = {}
        details: list[Argument] = []
        for one in chosen:
            record, marker = one.pair.record or {}, 0
            published = self._published(one.payload)
            if respect_deduplication and self._builder is not None and published is not None:
                key = await self._builder.deduplication_key(published, one.payload)
                marker_key = self._calls.keys.deduplication(key, record.get("tenant"))
                marker = markers.setdefault(marker_key, len(markers) + 1)
            body = envelope.body(one.payload, tenant_bytes(record), headers.for_redrive(record))
            record_digest = "" if one.record is None else digest(one.record)
            details += [one.place, digest(one.payload), one.record_place, record_digest, marker, body]
        return tuple(markers), details


def _is_worth_the_walk(chosen: Sequence[_Chosen], at: int) -> bool:
    """Return whether enough messages are to go, or as many as one script takes; the deeper, the more."""
    if sum(len(one.payload) for one in chosen) >= MAX_BYTES:
        return True
    return len(chosen) >= min(_MOST_DEEP, max(1, at // _PLACES_PER_MESSAGE))


def _as_published(payload: bytes) -> Any:
    """Return what was given to `publish`: a dict is read from its JSON. None if it was never a message of ours."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text
