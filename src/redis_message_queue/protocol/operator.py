"""What an operator does with a live queue: count, look, remove, send the dead back."""

from __future__ import annotations

import gc
import heapq
import itertools
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from redis_message_queue import envelope, headers
from redis_message_queue.checks import flag, required_function, whole_number
from redis_message_queue.envelope import tenant_name
from redis_message_queue.errors import ConfigurationError, QueueBackpressureError
from redis_message_queue.events import EventOperation
from redis_message_queue.identity import is_gone, is_of_this_host, is_of_this_process
from redis_message_queue.messages import MessageRecord, QueueStats, RedriveSummary
from redis_message_queue.protocol.calls import Calls, publishing_rules
from redis_message_queue.protocol.foreign import not_offered
from redis_message_queue.protocol.intake import held_without_lease
from redis_message_queue.protocol.port import Argument, Command
from redis_message_queue.protocol.records import Entry, digest, pair, record_of, record_of_stored, tenant_bytes
from redis_message_queue.scripts import script

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_READ_PAGE = Command(script("read_page"), ())

Source = Literal["pending", "processing", "delayed", "completed", "failed", "dead_letters"]
Listed = Literal["completed", "failed", "dead_letters"]
Target = Literal["pending", "delayed", "completed", "failed", "dead_letters", "orphans"]

_UNIT = 27_720  # what a turn of a tenant with weight 1 costs; see lua/lib/lines.lua
_PAGE = 500  # of a list that is gone through
_MOST = 10_000  # that one look returns
_ORPHANED_AFTER_US = 86_400_000_000  # when a process on another host counts as ended
_REPLY_MESSAGES = 1_000  # that one reply of the server carries
_REPLY_BYTES = 4 * 1024 * 1024  # or one message, if that is larger
_FIRST_SCAN = 10  # entries of a hash whose size is not known yet
_TENANTS = 500  # whose queues one script looks at
# A script that removes elements deep in a list walks to each of them, and over everything on the way once more.
_DEEP = 10_000
_MOST_DEEP = 50  # letters that one script removes from there
_PLACES_PER_LETTER = 1_000  # the deeper it is, the more letters it waits for before it walks there


class _ListPart(NamedTuple):
    """Elements of a list, by their places from one of its ends."""

    key: str | bytes
    side: str
    first: int
    number: int

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return (self.side, self.first, self.number)

    def without(self, read: int) -> _ListPart | None:
        """What is left when so many were read."""
        return self._replace(first=self.first + read, number=self.number - read) if read < self.number else None


class _HashPart(NamedTuple):
    """Fields of a hash."""

    key: str
    fields: tuple[bytes, ...]

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return ("hash", len(self.fields), *self.fields)

    def without(self, read: int) -> _HashPart | None:
        """What is left when so many were read."""
        return self._replace(fields=self.fields[read:]) if read < len(self.fields) else None


class _Chosen(NamedTuple):
    """A letter that goes back, and where it and its record stand, from the right ends of their lists."""

    entry: Entry
    payload: bytes
    place: int
    note: bytes | None
    note_place: int

    @classmethod
    def of(cls, entry: Entry, notes: Sequence[bytes], at: int, notes_at: int) -> _Chosen:
        """Read in pages that begin there."""
        assert entry.payload is not None
        if entry.note_place < 0:
            return cls(entry, entry.payload, at + entry.place, None, -1)
        return cls(entry, entry.payload, at + entry.place, notes[entry.note_place], notes_at + entry.note_place)

    def moved(self, places: int, note_places: int) -> _Chosen:
        """So many have left on the right of it."""
        note_place = self.note_place if self.note is None else self.note_place - note_places
        return self._replace(place=self.place - places, note_place=note_place)


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

    async def stats(self, oldest: bool = True) -> QueueStats:
        """How many messages are where. With many tenants this is several looks at a moving queue."""
        flag("oldest", oldest)
        command, age = self._command("stats", self._keys.line("")), -1
        cursor, last = b"-inf" if oldest else b"", b""
        while True:
            *counts, found, cursor, last = await self._calls.call(command, (cursor, last))
            age = max(age, found)
            if not cursor:
                break
        names = ("pending", "processing", "delayed", "completed", "failed", "dead_letters", "tenants")
        seconds = None if age < 0 else age / 1_000_000
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

    async def _read(self, parts: Sequence[_ListPart | _HashPart]) -> list[list[Any]]:
        """The parts of lists and hashes that are asked for, in as many replies as it takes.

        Between two replies the queue may move. Where somebody trims a list meanwhile, an element can be left out or
        come twice.
        """
        found: list[list[Any]] = [[] for _ in parts]
        left: deque[tuple[int, _ListPart | _HashPart]] = deque(enumerate(parts))
        while left:
            asked = list(itertools.islice(left, _TENANTS))
            arguments = [word for _, part in asked for word in part.arguments]
            keys: tuple[Any, ...] = tuple(part.key for _, part in asked)  # bytes where a tenant is not UTF-8
            full, *pages = await self._calls.call(
                _READ_PAGE, (_REPLY_MESSAGES, _REPLY_BYTES, *arguments), open_keys=keys
            )
            for (place, _), page in zip(asked, pages, strict=False):
                found[place] += page
                left.popleft()
            if full:  # the last of the pages was not read to its end, or was just full
                place, part = asked[len(pages) - 1]
                if rest := part.without(len(pages[-1])):
                    left.appendleft((place, rest))
        return found

    async def _read_list(self, key: str, side: str, first: int, count: int) -> list[bytes]:
        (elements,) = await self._read([_ListPart(key, side, first, count)])
        return elements

    async def _read_fields(self, key: str, fields: Sequence[bytes]) -> list[bytes | None]:
        parts = [
            _HashPart(key, tuple(fields[at : at + _REPLY_MESSAGES])) for at in range(0, len(fields), _REPLY_MESSAGES)
        ]
        return [value for values in await self._read(parts) for value in values]

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
        return await self._read_list(self._keys.line(tenant_name(tenant).decode()), "right", 0, count)

    async def _next_in_turn(self, count: int) -> list[bytes]:
        """As claims would take them if nothing else happened, expired leases left aside."""
        head, ring = await self._ask(
            ("LLEN", self._keys.pending),
            ("ZRANGE", self._keys.tenants, 0, count - 1, "WITHSCORES"),
        )
        members = [(name, int(float(score))) for name, score in _members(ring)]
        names = [name for name, _ in members if name]
        if not names:
            return await self._read_list(self._keys.pending, "right", 0, count)
        lengths = await self._ask(*(("LLEN", self._line(name)) for name in names))
        (weights,) = await self._ask(("HMGET", self._keys.weights, *names))
        turns = [(score, place, name) for place, (name, score) in enumerate(members) if name]
        waiting = dict(zip(names, lengths, strict=True))
        strides = {name: _stride(weight) for name, weight in zip(names, weights, strict=True)}
        if head:
            places = {name: (score, place) for place, (name, score) in enumerate(members)}
            turns.append((*places.get(b"", (turns[0][0] + _UNIT, len(turns))), b""))
            waiting[b""], strides[b""] = head, _UNIT
        # First who has which turn, by the lengths alone; then those messages are read, and no others.
        order = _turns(turns, waiting, strides, count)
        counts = Counter(order)
        heads = await self._read(
            [
                _ListPart(self._line(name) if name else self._keys.pending, "right", 0, number)
                for name, number in counts.items()
            ]
        )
        taken = {name: iter(messages) for name, messages in zip(counts, heads, strict=True)}
        found = (next(taken[name], None) for name in order)
        return [stored for stored in found if stored is not None]  # some may have left meanwhile

    async def _delayed(self, count: int) -> list[MessageRecord]:
        (found,) = await self._ask(("ZRANGE", self._keys.delayed, 0, count - 1, "WITHSCORES"))
        due = dict(_members(found))
        bodies = await self._read_fields(self._keys.later, list(due))
        return [
            record_of_stored(stored, decode=self._decode, due_us=float(score))
            for stored, score in zip(bodies, due.values(), strict=True)
            if stored is not None
        ]

    async def _in_flight(self, count: int) -> list[MessageRecord]:
        """Those whose lease ends first, then any of those that have none or whose lease has run out."""
        (found,) = await self._ask(("ZRANGE", self._keys.leases, 0, count + 1))
        ids = [one[: envelope.ID_BYTES] for one in found if len(one) == envelope.TOKEN_BYTES][:count]
        bodies = [one for one in await self._read_fields(self._keys.processing, ids) if one is not None]
        known, cursor, page = set(ids), b"0", _FIRST_SCAN
        while len(bodies) < count:
            ((cursor, scanned),) = await self._ask(("HSCAN", self._keys.processing, cursor, "COUNT", page))
            largest = 1
            for message_id, stored in _pairs(scanned):
                largest = max(largest, len(stored))
                if message_id[: envelope.ID_BYTES] not in known:
                    known.add(message_id[: envelope.ID_BYTES])
                    bodies.append(stored)
            if cursor == b"0":
                break
            page = max(_FIRST_SCAN, min(_PAGE, 2 * page, _REPLY_BYTES // largest))
        return [record_of_stored(one, decode=self._decode) for one in bodies[:count]]

    async def records(self, source: str, count: int) -> list[MessageRecord]:
        """What has left, the newest first: payloads with what is known of them."""
        _check_count("max_records", count)
        _check_choice("source", source, Listed)
        payloads, notes = await self._read([_ListPart(key, "left", 0, count) for key in self._lists[source]])
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
            return await self._sweep(target, "list", lists=self._lists[target])
        if target == "orphans":
            return await self._purge_orphans()
        began = await self._server_time()
        if target == "delayed":
            return await self._sweep(target, "delayed", began=began)
        return await self._sweep(target, "line", (b"", *await self._waiting_tenants()), began=began)

    async def _server_time(self) -> int:
        """In microseconds."""
        ((seconds, microseconds),) = await self._ask(("TIME",))
        return int(seconds) * 1_000_000 + int(microseconds)

    async def _purge_orphans(self) -> int:
        """Messages that consumers without leases have left in flight; what somebody works on is none of them."""
        if held_without_lease:
            gc.collect()  # a batch that nobody has any more, and whose block was never left, is not worked on
        removed, cursor, now, count, largest = 0, b"0", await self._server_time(), _FIRST_SCAN, 1
        while True:
            ((cursor, page),) = await self._ask(("HSCAN", self._keys.processing, cursor, "COUNT", count))
            found = _pairs(page)
            largest = max(largest, *(len(stored) for _, stored in found), 1)
            count = max(1, min(_PAGE, _REPLY_BYTES // largest))
            orphans = [token for token, stored in found if _is_orphan(token, stored, now)]
            for start in range(0, len(orphans), _REPLY_MESSAGES):
                tokens = b"".join(orphans[start : start + _REPLY_MESSAGES])
                removed += await self._sweep("orphans", "orphans", cursor=tokens)
            if cursor == b"0":
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
        began = await self._server_time()
        return await self._sweep("pending", "line", (tenant_name(tenant),), "deleted", began=began)

    async def _sweep(
        self,
        target: str,
        what: str,
        tenants: Sequence[bytes] = (),
        event: str = "purged",
        *,
        began: int = 0,
        lists: tuple[str, ...] = (),
        cursor: bytes = b"",
    ) -> int:
        """Step by step, each under a number: what comes later is not removed by a step that arrives late.

        Of what waits or is delayed, what was published after it ``began`` stays.
        """
        calls, slot = self._calls, self._calls.borrow()
        try:
            names = script("sweep").keys[:-2]
            keys = tuple(slot.key if name == "reply" else getattr(self._keys, name) for name in names)
            settings = (int(calls.keep_seconds * 1000), self._keys.line(""), self._keys.returned(""))
            command = Command(script("sweep"), keys, settings)
            removed, done, more = 0, 0, True
            rest: tuple[bytes, ...] = ()
            while more:
                if what == "line":
                    cursor, *others = tenants[done : done + _TENANTS]
                    rest = tuple(others)
                arguments: tuple[Argument, ...] = (slot.next_call(), event, target, what, cursor, began, *rest)
                reply = await calls.call(command, arguments, open_keys=lists)
                count, _, go_on = reply.partition(b" ")
                removed += int(count)
                if what == "line":
                    done += int(go_on or 1 + len(rest))
                    more = done < len(tenants)
                else:
                    cursor, _, ids = go_on.partition(b" ")
                    rest, more = (ids,) if ids else (), bool(go_on)
            return removed
        finally:
            calls.give_back(slot)

    # -- sending the dead back

    async def redrive(
        self,
        source: str,
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
        letters, notes = self._lists[source]
        matched, at, notes_at = 0, 0, 0  # how many were chosen, and how far from the right ends everything was read
        marks = Counter[str]()
        chosen: list[_Chosen] = []
        is_last = False
        while not is_last and (max_messages is None or matched < max_messages):
            payloads, is_last = await self._read_letters(letters, at)
            some_notes = await self._read_list(notes, "right", notes_at, _PAGE)
            entries = [one for one in pair(payloads, some_notes, whole=False) if one.payload is not None]
            for entry in entries:
                if max_messages is not None and matched >= max_messages:
                    break
                if await self._is_wanted(entry, where):
                    matched += 1
                    if not dry_run:
                        chosen.append(_Chosen.of(entry, some_notes, at, notes_at))
            at += len(payloads)
            notes_at += 1 + max((entry.note_place for entry in entries), default=-1)
            if is_last or matched == max_messages or _is_worth_the_walk(chosen, at):
                gone = gone_notes = 0
                for some in _steps(chosen, at):
                    told = await self._redrive(
                        source, [one.moved(gone, gone_notes) for one in some], respect_deduplication
                    )
                    marks.update(told)
                    went = [one for one, mark in zip(some, told, strict=True) if mark == "1"]
                    gone, gone_notes = gone + len(went), gone_notes + sum(one.note is not None for one in went)
                at, notes_at = at - gone, notes_at - gone_notes
                chosen = []
        return RedriveSummary(matched=matched, redriven=marks["1"], suppressed=marks["0"])

    async def _read_letters(self, letters: str, first: int) -> tuple[list[bytes], bool]:
        """A page of a list, from its right end, and whether there are no more."""
        arguments = (_PAGE, _REPLY_BYTES, "right", first, _PAGE)
        full, payloads = await self._calls.call(_READ_PAGE, arguments, open_keys=(letters,))
        return payloads, not full and len(payloads) < _PAGE

    async def _is_wanted(self, entry: Entry, where: Callable[[MessageRecord], bool] | None) -> bool:
        if where is None:
            return True
        answer = await self._queue.port.ask(where, record_of(entry, decode=self._decode))
        return bool(answer.unwrap())

    async def _redrive(self, source: str, chosen: list[_Chosen], dedup: bool) -> str:
        keys, options = self._keys, self._calls.options
        slot = self._calls.borrow()
        try:
            letters, records = self._lists[source]
            special = {"dlq": letters, "records": records, "reply": slot.key}
            names = script("redrive").keys[:-1]
            command = Command(script("redrive"), tuple(special.get(name) or getattr(keys, name) for name in names))
            markers: dict[str, int] = {}
            details: list[Argument] = []
            for one in chosen:
                payload, note = one.payload, one.entry.note or {}
                marker = 0
                published = _as_published(payload)
                if dedup and self._queue.options.deduplication and published is not None:
                    key = await self._queue.outbox.marker_of(published, note.get("tenant"))
                    marker = markers.setdefault(key, len(markers) + 1)
                body = envelope.body(payload, tenant_bytes(note), headers.redriven(note))
                note_digest = "" if one.note is None else digest(one.note)
                details += [one.place, digest(payload), one.note_place, note_digest, marker, body]
            base = self._calls.port.fresh_id()[: envelope.BASE_BYTES]
            *rules, _ = publishing_rules(options)  # at a limit redriving refuses, whatever a publish does
            settings = (int(self._calls.keep_seconds * 1000), keys.line(""), *rules)
            arguments = (*settings, slot.next_call(), base, *details)
            reply: bytes = await self._calls.call(command, arguments, open_keys=tuple(markers))
        finally:
            self._calls.give_back(slot)
        if reply == b"-":
            raise QueueBackpressureError(
                "the queue is full, and these messages stay where they are; try again when consumers have "
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


def _turns(
    turns: list[tuple[int, int, bytes]], waiting: dict[bytes, int], strides: Mapping[bytes, int], count: int
) -> list[bytes]:
    """Whose turn it is, one after the other, until so many had one or nothing is left."""
    heapq.heapify(turns)
    order: list[bytes] = []
    later = itertools.count(count + 1)  # those of one time go by when they came to it
    while turns and len(order) < count:
        time, _, name = heapq.heappop(turns)
        if waiting[name] > 0:
            waiting[name] -= 1
            order.append(name)
            heapq.heappush(turns, (time + strides[name], next(later), name))
    return order


def _is_worth_the_walk(chosen: Sequence[_Chosen], at: int) -> bool:
    """Whether enough letters are to go, or all that one script takes; the deeper they are, the more of them."""
    if sum(len(one.payload) for one in chosen) >= _REPLY_BYTES:
        return True
    return len(chosen) >= min(_MOST_DEEP, max(1, at // _PLACES_PER_LETTER))


def _steps(chosen: Sequence[_Chosen], at: int) -> Iterator[Sequence[_Chosen]]:
    """As many as one script takes."""
    most = _PAGE if at <= _DEEP else _MOST_DEEP
    start = size = 0
    for place, one in enumerate(chosen):
        if place > start and (place - start == most or size + len(one.payload) > _REPLY_BYTES):
            yield chosen[start:place]
            start, size = place, 0
        size += len(one.payload)
    if start < len(chosen):
        yield chosen[start:]


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


def _is_orphan(token: bytes, stored: bytes, now_us: int) -> bool:
    """Whether nobody works on a message that was claimed without a lease: its holder has ended or let go of it.

    Of a process on another host nothing can be known: its messages count as orphans a day after they were published.
    """
    if len(token) != envelope.TOKEN_BYTES or token in held_without_lease:
        return False
    slot_name = token[envelope.ID_BYTES :]
    if is_of_this_process(slot_name) or is_gone(slot_name):
        return True
    published_us = int.from_bytes(stored[envelope.TIME_AT : envelope.HEADER_BYTES], "big")
    return not is_of_this_host(slot_name) and published_us < now_us - _ORPHANED_AFTER_US


def _stride(weight: bytes | None) -> int:
    """What a turn costs, as the scripts have it: a weight that is none counts as one."""
    return _UNIT // (int(weight) if weight and re.fullmatch(rb"[1-9]\d{0,3}", weight) else 1)


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
