"""What an operator does with a live queue: count, look, remove, send the dead back."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

from redis_message_queue import envelope, headers
from redis_message_queue.checks import flag, required_function, whole_number
from redis_message_queue.envelope import tenant_name
from redis_message_queue.errors import ConfigurationError, QueueBackpressureError
from redis_message_queue.events import EventOperation
from redis_message_queue.messages import MessageRecord, QueueStats, RedriveSummary
from redis_message_queue.protocol.calls import Calls, publishing_rules
from redis_message_queue.protocol.foreign import not_offered
from redis_message_queue.protocol.port import Argument, Command
from redis_message_queue.protocol.records import Entry, digest, pair, record_of, record_of_stored, tenant_bytes
from redis_message_queue.scripts import script

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

Source = Literal["pending", "processing", "delayed", "completed", "failed", "dead_letters"]
Listed = Literal["completed", "failed", "dead_letters"]
Target = Literal["pending", "delayed", "completed", "failed", "dead_letters", "orphans"]

_UNIT = 27_720  # what a turn of a tenant with weight 1 costs; see lua/lib/lines.lua
_PAGE = 500  # of a list that is gone through
_MOST = 10_000  # that one look returns


class Operator:
    """The operator's view of one queue."""

    def __init__(self, queue: QueueProtocol) -> None:
        store = queue.store
        if store.calls is None:
            raise not_offered(store.gateway, "what operators do (stats, peek, records, purge, redrive, tenants)")
        self._queue = queue
        self._calls: Calls = store.calls
        self._keys = keys = store.keys
        self._decode = store.decodes
        self._lists = {
            "completed": (keys.completed, keys.records("completed")),
            "failed": (keys.failed, keys.records("failed")),
            "dead_letters": (keys.dead_letter, keys.records("dlq")),
        }

    def _command(self, verb: str, *settings: Argument) -> Command:
        special = {"dlq": self._keys.dead_letter}
        keys = tuple(special.get(name) or getattr(self._keys, name) for name in script(verb).keys)
        return Command(script(verb), keys, settings)

    async def _ask(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """Plain commands, sent together."""
        return await self._calls.converse(self._keys.pending, commands, "look")

    # -- counting

    async def stats(self) -> QueueStats:
        """How many messages are where. With many tenants this is several looks at a moving queue."""
        command, first, oldest = self._command("stats", self._keys.line("")), 0, -1
        while True:
            *counts, age, more = await self._calls.call(command, (first,))
            oldest = max(oldest, age)
            if not more:
                break
            first += 1_000
        names = ("pending", "processing", "delayed", "completed", "failed", "dead_letters", "tenants")
        seconds = None if oldest < 0 else oldest / 1_000_000
        return QueueStats(**dict(zip(names, counts, strict=True)), oldest_pending_seconds=seconds)

    async def tenants(self, max_tenants: int) -> dict[str, int]:
        """The tenants with waiting messages, whose turn is next first, and how many wait."""
        _check_count("max_tenants", max_tenants)
        (ring,) = await self._ask(("ZRANGE", self._keys.tenants, 0, max_tenants))
        names = [name for name in ring if name][:max_tenants]
        lengths = await self._ask(*(("LLEN", self._line(name)) for name in names)) if names else []
        returned = self._keys.returned("").encode()
        came_back = await self._ask(*(("ZCARD", returned + name) for name in names)) if names else []
        counts = [line + back for line, back in zip(lengths, came_back, strict=True)]
        return dict(zip(map(envelope.tenant_text, names), counts, strict=True))

    def _line(self, tenant: bytes) -> bytes:
        """The line of a tenant by its bytes, which need not be UTF-8."""
        return self._keys.line("").encode() + tenant

    async def length_of_line(self, tenant: str) -> int:
        """How many messages of a tenant wait."""
        name = tenant_name(tenant).decode()
        return sum(await self._ask(("LLEN", self._keys.line(name)), ("ZCARD", self._keys.returned(name))))

    # -- looking

    async def peek(self, count: int, source: str, tenant: str | None) -> list[MessageRecord]:
        """The next messages of a source, without touching them."""
        _check_count("count", count)
        _check_choice("source", source, Source)
        if tenant is not None and source != "pending":
            raise ConfigurationError(f"tenant goes with source='pending', not with {source!r}")
        if source in self._lists:
            return await self.records(source, count)
        if source == "pending":
            stored = await (self._head_of_line(tenant, count) if tenant is not None else self._next_in_turn(count))
            return [record_of_stored(one, decode=self._decode) for one in stored]
        return await (self._delayed(count) if source == "delayed" else self._in_flight(count))

    async def _head_of_line(self, tenant: str, count: int) -> list[bytes]:
        (head,) = await self._ask(("LRANGE", self._keys.line(tenant_name(tenant).decode()), -count, -1))
        return list(reversed(head))

    async def _next_in_turn(self, count: int) -> list[bytes]:
        """As claims would take them if nothing else happened, expired leases left aside."""
        head, ring = await self._ask(
            ("LRANGE", self._keys.pending, -count, -1),
            ("ZRANGE", self._keys.tenants, 0, count - 1, "WITHSCORES"),
        )
        turns = [(int(float(score)), place, name) for place, (name, score) in enumerate(_members(ring)) if name]
        if not turns:
            return list(reversed(head))
        names = [name for _, _, name in turns]
        lines = await self._ask(*(("LRANGE", self._line(name), -count, -1) for name in names))
        (weights,) = await self._ask(("HMGET", self._keys.weights, *names))
        waiting = dict(zip(names, lines, strict=True))
        strides = {name: _UNIT // int(weight or 1) for name, weight in zip(names, weights, strict=True)}
        if head:
            places = {name: (int(float(score)), place) for place, (name, score) in enumerate(_members(ring))}
            turns.append((*places.get(b"", (turns[0][0] + _UNIT, len(turns))), b""))
            waiting[b""], strides[b""] = head, _UNIT
        heapq.heapify(turns)
        taken: list[bytes] = []
        later = itertools.count(count + 1)  # those of one time go by when they came to it
        while turns and len(taken) < count:
            time, _, name = heapq.heappop(turns)
            if waiting[name]:
                taken.append(waiting[name].pop())
                heapq.heappush(turns, (time + strides[name], next(later), name))
        return taken

    async def _delayed(self, count: int) -> list[MessageRecord]:
        (found,) = await self._ask(("ZRANGE", self._keys.delayed, 0, count - 1, "WITHSCORES"))
        due = dict(_members(found))
        if not due:
            return []
        (bodies,) = await self._ask(("HMGET", self._keys.later, *due))
        return [
            record_of_stored(stored, decode=self._decode, due_us=float(score))
            for stored, score in zip(bodies, due.values(), strict=True)
            if stored is not None
        ]

    async def _in_flight(self, count: int) -> list[MessageRecord]:
        """Those whose lease ends first, then any of those that have none or whose lease has run out."""
        (found,) = await self._ask(("ZRANGE", self._keys.leases, 0, count + 1))
        ids = [one for one in found if len(one) == envelope.ID_BYTES][:count]
        bodies: list[bytes] = []
        if ids:
            (held,) = await self._ask(("HMGET", self._keys.processing, *ids))
            bodies = [one for one in held if one is not None]
        known, cursor = set(ids), b"0"
        while len(bodies) < count:
            ((cursor, scanned),) = await self._ask(("HSCAN", self._keys.processing, cursor, "COUNT", _PAGE))
            for message_id, stored in _pairs(scanned):
                if message_id not in known:
                    known.add(message_id)
                    bodies.append(stored)
            if cursor == b"0":
                break
        return [record_of_stored(one, decode=self._decode) for one in bodies[:count]]

    async def records(self, source: str, count: int) -> list[MessageRecord]:
        """What has left, the newest first: payloads with what is known of them."""
        _check_count("max_records", count)
        _check_choice("source", source, Listed)
        payloads, notes = await self._ask(*(("LRANGE", key, 0, count - 1) for key in self._lists[source]))
        whole = len(payloads) < count
        entries = list(pair(payloads, notes, whole=whole))[:count]
        return [record_of(entry, decode=self._decode) for entry in entries]

    # -- removing

    async def purge(self, target: str) -> int:
        """Remove everything of one kind; how many there were."""
        if target == "processing":
            raise ConfigurationError(
                "purge refuses 'processing': somebody works on these messages; purge 'orphans' for those that a "
                "consumer without leases has left behind"
            )
        _check_choice("target", target, Target)
        if target in self._lists:
            return await self._sweep(target, "list", b"", lists=self._lists[target])
        if target in ("orphans", "delayed"):
            return await self._sweep(target, target, b"")
        removed = await self._sweep(target, "line", b"")
        for tenant in await self._waiting_tenants():
            removed += await self._sweep(target, "line", tenant)
        return removed

    async def _waiting_tenants(self) -> list[bytes]:
        """Everybody who waits now. Whoever comes later is not waited for: on a live queue that would never end."""
        names: dict[bytes, None] = {}
        cursor = b"0"
        while True:
            ((cursor, scanned),) = await self._ask(("ZSCAN", self._keys.tenants, cursor, "COUNT", _PAGE))
            names.update((name, None) for name, _ in _pairs(scanned) if name)
            if cursor == b"0":
                return list(names)

    async def delete_line(self, tenant: str) -> int:
        """Remove what waits for one tenant; how many there were."""
        return await self._sweep("pending", "line", tenant_name(tenant), "deleted")

    async def _sweep(
        self, target: str, what: str, whose: bytes, event: str = "purged", lists: tuple[str, ...] = ()
    ) -> int:
        """Step by step, each under a number: what comes later is not removed by a step that arrives late."""
        calls, slot = self._calls, self._calls.borrow()
        try:
            names = script("sweep").keys[:-2]
            keys = tuple(slot.key if name == "reply" else getattr(self._keys, name) for name in names)
            settings = (int(calls.keep_seconds * 1000), self._keys.line(""), self._keys.returned(""))
            command = Command(script("sweep"), keys, settings)
            removed, more = 0, b"1"
            while more:
                reply = await calls.call(command, (slot.next_call(), event, target, what, whose), open_keys=lists)
                count, _, more = reply.partition(b" ")
                removed += int(count)
                if what == "orphans":
                    whose = more
            return removed
        finally:
            calls.give_back(slot)

    # -- sending the dead back

    async def redrive(
        self,
        max_messages: int | None,
        where: Callable[[MessageRecord], bool] | None,
        dry_run: bool,
        respect_deduplication: bool,
    ) -> RedriveSummary:
        """Dead letters become messages again, the oldest first, with a fresh id and a fresh delivery budget."""
        whole_number("max_messages", max_messages, optional=True)
        if where is not None:
            required_function("where", where)
        flag("dry_run", dry_run)
        flag("respect_deduplication", respect_deduplication)
        letters, notes = self._lists["dead_letters"]
        matched = redriven = suppressed = skipped = notes_skipped = 0
        while max_messages is None or matched < max_messages:
            payloads, some_notes = await self._ask(
                ("LRANGE", letters, -skipped - _PAGE, -skipped - 1),
                ("LRANGE", notes, -notes_skipped - _PAGE, -notes_skipped - 1),
            )
            payloads.reverse()
            some_notes.reverse()
            entries = [one for one in pair(payloads, some_notes, whole=False) if one.payload is not None]
            chosen: list[Entry] = []
            for entry in entries:
                if max_messages is not None and matched + len(chosen) >= max_messages:
                    break
                if await self._is_wanted(entry, where):
                    chosen.append(entry)
            matched += len(chosen)
            marks = ""
            if chosen and not dry_run:
                marks = await self._redrive(chosen, some_notes, skipped, notes_skipped, respect_deduplication)
            gone = marks.count("1")
            redriven, suppressed = redriven + gone, suppressed + marks.count("0")
            read = 1 + max((entry.note_place for entry in entries), default=-1)
            with_note = sum(mark == "1" and entry.note_place >= 0 for mark, entry in zip(marks, chosen, strict=False))
            skipped, notes_skipped = skipped + len(payloads) - gone, notes_skipped + read - with_note
            if len(payloads) < _PAGE:
                break
        return RedriveSummary(matched=matched, redriven=redriven, suppressed=suppressed)

    async def _is_wanted(self, entry: Entry, where: Callable[[MessageRecord], bool] | None) -> bool:
        if where is None:
            return True
        answer = await self._queue.port.ask(where, record_of(entry, decode=self._decode))
        return bool(answer.unwrap())

    async def _redrive(
        self, chosen: list[Entry], notes: list[bytes], skipped: int, notes_skipped: int, dedup: bool
    ) -> str:
        keys, options = self._keys, self._calls.options
        slot = self._calls.borrow()
        try:
            special = {"dlq": keys.dead_letter, "records": keys.records("dlq"), "reply": slot.key}
            names = script("redrive").keys[:-1]
            command = Command(script("redrive"), tuple(special.get(name) or getattr(keys, name) for name in names))
            markers: dict[str, int] = {}
            details: list[Argument] = []
            for entry in chosen:
                assert entry.payload is not None
                marker = 0
                published = _as_published(entry.payload)
                if dedup and self._queue.options.deduplication and published is not None:
                    key = await self._queue.outbox.marker_of(published)
                    marker = markers.setdefault(key, len(markers) + 1)
                note = entry.note or {}
                body = envelope.body(entry.payload, tenant_bytes(note), headers.redriven(note))
                record: tuple[Argument, Argument] = (-1, "")
                if entry.note_place >= 0:
                    record = (notes_skipped + entry.note_place, digest(notes[entry.note_place]))
                details += [skipped + entry.place, digest(entry.payload), *record, marker, body]
            base = self._calls.port.fresh_id()[: envelope.BASE_BYTES]
            *rules, _ = publishing_rules(options)  # at a limit redriving refuses, whatever a publish does
            settings = (int(self._calls.keep_seconds * 1000), keys.line(""), *rules)
            arguments = (*settings, slot.next_call(), base, *details)
            reply: bytes = await self._calls.call(command, arguments, open_keys=tuple(markers))
        finally:
            self._calls.give_back(slot)
        if reply == b"-":
            raise QueueBackpressureError(
                "the queue is full, and these dead letters stay where they are; try again when consumers have "
                "caught up, or with a smaller max_messages",
                queue=self._queue.options.name,
                operation="redrive",
            )
        for place, mark in enumerate(reply.decode(), 1):
            if mark == "1":
                await self._queue.teller.tell(
                    EventOperation.REDRIVEN, message_id=(base + place.to_bytes(2, "big")).hex()
                )
        return reply.decode()


def _as_published(payload: bytes) -> Any:
    """What was once given to `publish`: a dict comes back from its JSON. None if it was never a message of ours."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text


def _members(found: Any) -> list[tuple[bytes, Any]]:
    """Members with scores, in either protocol: RESP3 pairs them."""
    if found and isinstance(found[0], list):
        return [(member, score) for member, score in found]
    return list(zip(found[::2], found[1::2], strict=True))


def _pairs(scanned: Any) -> list[tuple[bytes, bytes]]:
    """A page of HSCAN or ZSCAN."""
    if isinstance(scanned, dict):
        return list(scanned.items())
    return list(zip(scanned[::2], scanned[1::2], strict=True))


def _check_count(name: str, count: Any) -> None:
    whole_number(name, count)
    if count > _MOST:
        raise ConfigurationError(f"{name} must be at most {_MOST:,}, not {count}")


def _check_choice(name: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, get_args(choices)))}, not {value!r}")
