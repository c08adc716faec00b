"""Shows what is in a queue without changing it."""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from redis_message_queue.protocol.operate.pages import (
    FIRST_SCAN,
    PAGE,
    ListPart,
    PageReader,
    check_choice,
    check_count,
    members_with_scores,
    scanned_pairs,
)
from redis_message_queue.protocol.operate.record_pairs import claimed_by, pair, record_of, record_of_stored
from redis_message_queue.protocol.port import Command
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored import envelope
from redis_message_queue.stored.bounds import MAX_BYTES
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.stored.keys import script_keys
from redis_message_queue.stored.scripts import constant, script
from redis_message_queue.values.checks import flag
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.messages import MessageRecord, QueueStats

PeekSource = Literal["pending", "processing", "delayed", "completed", "failed", "dead_letters"]
RecordSource = Literal["completed", "failed", "dead_letters"]

_MOST_TENANTS = 10_000  # whose queues are counted in one pipeline
_MEMBERS = 10_000  # of a sorted set, in one reply
_STRIDE = constant("places", "STRIDE")  # what a turn of a tenant with weight 1 costs


class QueueReader:
    """Counts and shows messages. Other clients may keep working meanwhile."""

    def __init__(self, store: Store, pages: PageReader) -> None:
        self._calls = store.calls
        self._keys = store.keys
        self._decode = store.decodes
        self._pages = pages

    async def stats(self, oldest: bool) -> QueueStats:
        """Return how many messages are where. With many tenants, several scripts count a queue that changes."""
        flag("oldest", oldest)
        keys = script_keys(self._keys, script("stats").keys)
        command, age = Command(script("stats"), keys, (self._keys.tenant_pending(""),)), -1
        cursor, last = b"-inf" if oldest else b"", b""
        while True:
            *counts, paused, paused_tenants, found, cursor, last = await self._calls.call(command, (cursor, last))
            age = max(age, found)
            if not cursor:
                break
        fields = ("pending", "processing", "delayed", "completed", "failed", "dead_letters", "tenants")
        seconds = None if age < 0 else age / 1_000_000
        return QueueStats(
            **dict(zip(fields, counts, strict=True)),
            oldest_pending_seconds=seconds,
            paused=bool(paused),
            paused_tenants=paused_tenants,
        )

    async def tenants(self, max_tenants: int) -> dict[str, int]:
        """Return how many messages of each tenant wait; the tenant whose turn is next comes first."""
        check_count("max_tenants", max_tenants)
        (ring,) = await self._pages.send(("ZRANGE", self._keys.tenant_ring, 0, max_tenants))
        names = [name for name in ring if name][:max_tenants]
        return dict(zip(map(envelope.tenant_text, names), await self._waiting_of(names), strict=True))

    async def _waiting_of(self, names: Sequence[bytes]) -> list[int]:
        """Return how many messages of each tenant wait."""
        counts: list[int] = []
        expired = self._keys.expired("").encode()
        for start in range(0, len(names), _MOST_TENANTS):
            some = names[start : start + _MOST_TENANTS]
            waiting = await self._pages.send(*(("LLEN", self._pages.tenant_queue(name)) for name in some))
            returned = await self._pages.send(*(("ZCARD", expired + name) for name in some))
            counts += [queued + back for queued, back in zip(waiting, returned, strict=True)]
        return counts

    async def behind_retries(self) -> int:
        """Return how many messages wait behind one of their tenant that waits for its next attempt."""
        leases = await self._members(self._keys.leases)
        retried = {token[: envelope.ID_BYTES] for token in leases if envelope.holds_place_of_retry(token)}
        if not retried:
            return 0
        flights = await self._members(self._keys.tenant_in_flight)  # see lib/in_flight.lua
        names = {one[1 : -envelope.ID_BYTES] for one in flights if one[-envelope.ID_BYTES :] in retried}
        return sum(await self._waiting_of(sorted(names)))

    async def _members(self, key: str) -> list[bytes]:
        """Return all members of a sorted set."""
        members: list[bytes] = []
        while True:
            (page,) = await self._pages.send(("ZRANGE", key, len(members), len(members) + _MEMBERS - 1))
            members += page
            if len(page) < _MEMBERS:
                return members

    async def tenant_length(self, tenant: str) -> int:
        """Return how many messages of a tenant wait."""
        name = tenant_name(tenant).decode()
        lengths = (("LLEN", self._keys.tenant_pending(name)), ("ZCARD", self._keys.expired(name)))
        return sum(await self._pages.send(*lengths))

    async def records(self, source: str, count: int) -> list[MessageRecord]:
        """Return what is known of messages that have left the queue, the newest first."""
        check_count("max_records", count)
        check_choice("source", source, RecordSource)
        payloads, records = await self._pages.read(
            [ListPart(key, "left", 0, count) for key in self._pages.lists[source]]
        )
        pairs = list(pair(payloads, records, whole=len(payloads) < count))[:count]
        names = await self._pages.consumers(claimed_by(one.record) for one in pairs)
        return [record_of(one, decode=self._decode, names=names) for one in pairs]

    async def peek(self, count: int, source: str, tenant: str | None) -> list[MessageRecord]:
        """Return the next messages of a source."""
        check_count("count", count)
        check_choice("source", source, PeekSource)
        if tenant is not None and source != "pending":
            raise ConfigurationError(f"tenant goes with source='pending', not with {source!r}")
        if source in self._pages.lists:
            return await self.records(source, count)
        if source == "delayed":
            return await self._delayed(count)
        if source == "processing":
            return await self._in_flight(count)
        if tenant is not None:
            key = self._keys.tenant_pending(tenant_name(tenant).decode())
            stored = await self._pages.read_list(key, "right", 0, count)
        else:
            stored = await self._next_in_turn(count)
        return await self._waiting(stored)

    async def _waiting(self, stored: list[bytes]) -> list[MessageRecord]:
        """Return what is known of messages that wait, and whether they are cancelled."""
        if not stored:
            return []
        ids = (one[1 : envelope.TIME_AT] for one in stored)
        (marks,) = await self._pages.send(("ZMSCORE", self._keys.cancelled, *ids))
        return [
            replace(record_of_stored(one, decode=self._decode), cancelled=mark is not None)
            for one, mark in zip(stored, marks, strict=True)
        ]

    async def _next_in_turn(self, count: int) -> list[bytes]:
        """Return what claims would take if nothing else happened, without messages whose leases expire meanwhile."""
        pages, keys = self._pages, self._keys
        waiting_without_tenant, ring = await pages.send(
            ("LLEN", keys.pending), ("ZRANGE", keys.tenant_ring, 0, count - 1, "WITHSCORES")
        )
        members = [(name, _turn_time(float(score))) for name, score in members_with_scores(ring)]
        names = [name for name, _ in members if name]
        if not names:
            return await pages.read_list(keys.pending, "right", 0, count)
        lengths = await pages.send(*(("LLEN", pages.tenant_queue(name)) for name in names))
        (weights,) = await pages.send(("HMGET", keys.weights, *names))
        turns = [(score, place, name) for place, (name, score) in enumerate(members) if name]
        waiting = dict(zip(names, lengths, strict=True))
        strides = {name: _stride(weight) for name, weight in zip(names, weights, strict=True)}
        if waiting_without_tenant:
            places = {name: (score, place) for place, (name, score) in enumerate(members)}
            turns.append((*places.get(b"", (turns[0][0] + _STRIDE, len(turns))), b""))
            waiting[b""], strides[b""] = waiting_without_tenant, _STRIDE
        return await self._read_turns(_turns(turns, waiting, strides, count))

    async def _read_turns(self, order: list[bytes]) -> list[bytes]:
        """Return the next message of each tenant in this order, and read no other messages."""
        counts = Counter(order)
        heads = await self._pages.read(
            [
                ListPart(self._pages.tenant_queue(name) if name else self._keys.pending, "right", 0, number)
                for name, number in counts.items()
            ]
        )
        messages = {name: iter(head) for name, head in zip(counts, heads, strict=True)}
        found = (next(messages[name], None) for name in order)
        return [stored for stored in found if stored is not None]  # some may have left meanwhile

    async def _delayed(self, count: int) -> list[MessageRecord]:
        (found,) = await self._pages.send(("ZRANGE", self._keys.delayed, 0, count - 1, "WITHSCORES"))
        due = dict(members_with_scores(found))
        bodies = await self._pages.read_fields(self._keys.delayed_messages, list(due))
        return [
            record_of_stored(stored, decode=self._decode, due_us=float(score))
            for stored, score in zip(bodies, due.values(), strict=True)
            if stored is not None
        ]

    async def _in_flight(self, count: int) -> list[MessageRecord]:
        """Return the messages whose leases end first, then any that have no lease or whose lease has expired."""
        (found,) = await self._pages.send(("ZRANGE", self._keys.leases, 0, count + 1))
        tokens = [one for one in found if len(one) == envelope.TOKEN_BYTES][:count]
        ids = [one[: envelope.ID_BYTES] for one in tokens]
        read = zip(await self._pages.read_fields(self._keys.processing, ids), tokens, strict=True)
        bodies: list[tuple[bytes, bytes]] = [(stored, token) for stored, token in read if stored is not None]
        known, cursor, page = set(ids), b"0", FIRST_SCAN
        while len(bodies) < count:
            ((cursor, scanned),) = await self._pages.send(("HSCAN", self._keys.processing, cursor, "COUNT", page))
            largest = 1
            for message_id, stored in scanned_pairs(scanned):
                largest = max(largest, len(stored))
                if message_id[: envelope.ID_BYTES] not in known:
                    known.add(message_id[: envelope.ID_BYTES])
                    bodies.append((stored, message_id))
            if cursor == b"0":
                break
            page = max(FIRST_SCAN, min(PAGE, 2 * page, MAX_BYTES // largest))
        # Of a message whose lease has ended the token is not known.
        held = [
            (record_of_stored(one, decode=self._decode), envelope.process_of(token)) for one, token in bodies[:count]
        ]
        names = await self._pages.consumers(process for _, process in held)
        return [replace(record, consumer=names.get(process)) for record, process in held]


def _turns(
    turns: list[tuple[float, int, bytes]], waiting: dict[bytes, int], strides: Mapping[bytes, int], count: int
) -> list[bytes]:
    """Return whose turn it is, one after the other, until there were ``count`` turns or nothing is left."""
    heapq.heapify(turns)
    order: list[bytes] = []
    later = itertools.count(count + 1)  # among turns at the same time, the tenant that came first goes first
    while turns and len(order) < count:
        time, _, name = heapq.heappop(turns)
        if waiting[name] > 0:
            waiting[name] -= 1
            order.append(name)
            heapq.heappush(turns, (time + strides[name], next(later), name))
    return order


def _turn_time(score: float) -> float:
    """Return the virtual time of a tenant, as the scripts read it; another program may have written any score."""
    return score if math.isinf(score) and score > 0 else math.floor(max(score, 0))


def _stride(weight: bytes | None) -> int:
    """Return what a turn costs, as the scripts count it: an invalid weight counts as one."""
    return _STRIDE // (int(weight) if weight and re.fullmatch(rb"[1-9]\d{0,3}", weight) else 1)
