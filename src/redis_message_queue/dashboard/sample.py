"""One look at a queue: what the dashboard knows about it at one time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from redis.exceptions import ResponseError

from redis_message_queue.asyncio import RedisMessageQueue
from redis_message_queue.dashboard.rates import Rates, rates_of_journal, rates_of_records
from redis_message_queue.process.identity import consumer_name
from redis_message_queue.protocol.operate.pages import (
    ListPart,
    PageReader,
    members_with_scores,
    refuse_other_count,
    scanned_pairs,
)
from redis_message_queue.protocol.operate.record_pairs import pair, record_of, record_of_stored
from redis_message_queue.protocol.operate.workers import MOST_WORKERS, in_order, merged_workers
from redis_message_queue.stored import envelope
from redis_message_queue.stored.envelope import tenant_text
from redis_message_queue.values.messages import ConnectedWorker, MessageRecord, QueueStats, moment

LEASES = 100  # that end first: one look reads no more
RECORDS = 20  # the newest of each list
_HANDLED = 100  # records of handled messages, to measure how long they took
_JOURNAL, _JOURNAL_WITH_PAYLOADS = 500, 50  # entries
TENANTS_SHOWN = 20
_TENANTS = 200
_GROUPS = 100
_NOBODY = "nobody: it waits for its next attempt"


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A message in flight, the process that claimed it, and when its lease ends by the server's clock."""

    token: bytes
    ends_at: float
    name: str | None = None  # what the process has said that it is called

    @property
    def id(self) -> str:
        return self.token[: envelope.ID_BYTES].hex()

    @property
    def process(self) -> str:
        return envelope.process_of(self.token).hex()

    @property
    def consumer(self) -> str:
        """The name of the process: its host and its process id, after its own name if it has one."""
        return self.name or consumer_name(self.token[envelope.ID_BYTES :])


@dataclass(frozen=True, slots=True)
class TenantBacklog:
    """The waiting messages of one tenant. ``name`` is None for messages without a tenant."""

    name: str | None
    pending: int
    weight: int
    oldest_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The consumer group of a streaming query: what it has claimed and not yet acked."""

    name: str
    messages: int
    batches: int
    has_query: bool
    acked: int = 0
    since: float = 0.0  # when it last finished a batch, or was first seen with these messages


@dataclass(frozen=True, slots=True)
class QueueDetails:
    """The tenants and rates of a queue, which only its own page shows."""

    tenants: tuple[TenantBacklog, ...] = ()
    tenants_read: int = 0
    rates: Rates | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A queue at one time, by the server's clock."""

    at: float
    stats: QueueStats
    leases: tuple[HeldLease, ...] = ()  # those that end first
    unleased: int = 0  # in processing without a lease, as far as that is known
    first_due_at: float | None = None
    dead_letters: tuple[MessageRecord, ...] = ()  # the newest
    failed: tuple[MessageRecord, ...] = ()
    groups: tuple[GroupLag, ...] = ()
    paused_at: float | None = None
    paused_tenants: int = 0
    schedules: int = 0
    next_tick_at: float | None = None  # of all schedules
    workers: Mapping[str, ConnectedWorker] = field(default_factory=dict)  # by what tokens say of their processes
    lost: frozenset[str] = frozenset()  # processes that were connected and still hold messages
    saw_claim: bool = False  # whether somebody has claimed a message since the sample before

    @property
    def oldest_seconds(self) -> float | None:
        return self.stats.oldest_pending_seconds

    @property
    def connected(self) -> list[ConnectedWorker]:
        """The workers that have run longest first."""
        return in_order(self.workers)

    def with_oldest(self, seconds: float | None) -> Sample:
        return replace(self, stats=replace(self.stats, oldest_pending_seconds=seconds))

    def after(self, before: Sample) -> Sample:
        """Return this sample with what the one before it adds: a claim leaves fewer waiting, or a new lease or head."""
        ages = before.oldest_seconds, self.oldest_seconds
        saw_claim = (
            self.saw_claim  # in a partition
            or self.stats.pending < before.stats.pending
            or not {one.token for one in self.leases} <= {one.token for one in before.leases}
            or (ages[0] is not None and ages[1] is not None and ages[1] < ages[0])
        )
        last = {group.name: group for group in before.groups if group.messages}
        groups = tuple(
            replace(group, since=last[group.name].since)
            if group.name in last and group.acked == last[group.name].acked
            else group
            for group in self.groups
        )
        holding = {one.process for one in self.leases}
        lost = frozenset(holding.intersection((*before.workers, *before.lost)) - self.workers.keys())
        return replace(self, saw_claim=saw_claim, groups=groups, lost=lost)

    def without_messages(self) -> Sample:
        """Return what the history keeps: a thousand queues must fit into memory."""
        return replace(self, leases=(), dead_letters=(), failed=(), groups=(), workers={})


class Sampler:
    """Looks at one queue with commands that read little, however long the queue is."""

    def __init__(self, queue: RedisMessageQueue) -> None:
        calls = queue._protocol.store.calls
        self.queue = queue
        self.pages = PageReader(calls)
        self._partitions = calls.partitions

    async def read(self, *, oldest: bool) -> Sample:
        """Return counts, the leases that end first, the newest failures and the lag of streaming queries."""
        key = self.queue.key
        stats = await self.queue.stats(oldest=oldest)
        (
            (seconds, microseconds),
            leased,
            leases,
            due,
            dead,
            failed,
            (_, groups),
            (paused, paused_tenants),
            schedules,
            tick,
            entries,
            (partitions,),
        ) = await self.pages.send(
            ("TIME",),
            ("ZCARD", key.leases),
            ("ZRANGE", key.leases, 0, LEASES + 2, "WITHSCORES"),  # three members may be alarms
            ("ZRANGE", key.delayed, 0, 0, "WITHSCORES"),
            ("LRANGE", key.records("dlq"), 0, RECORDS - 1),
            ("LRANGE", key.records("failed"), 0, RECORDS - 1),
            ("HSCAN", key.groups, 0, "COUNT", _GROUPS),
            ("HMGET", key.meta, "paused", "paused_tenants"),
            ("ZCARD", key.schedules),
            ("ZRANGE", key.schedules, 0, 0, "WITHSCORES"),
            ("ZRANGE", key.connected_workers, -MOST_WORKERS, -1, "WITHSCORES"),
            ("HMGET", key.counted, "partitions"),
        )
        refuse_other_count(partitions, self._partitions)
        at = int(seconds) + int(microseconds) / 1e6
        found = [(token, float(score) / 1e6) for token, score in members_with_scores(leases)]
        tokens = [(token, ends) for token, ends in found if len(token) == envelope.TOKEN_BYTES]
        names = await self.pages.consumers(envelope.process_of(token) for token, _ in tokens)
        held = [HeldLease(token, ends, names.get(envelope.process_of(token), _NOBODY)) for token, ends in tokens]
        claimed = {tenant_text(name): _number(count) for name, count in scanned_pairs(groups)}
        in_groups = claimed.pop("", 0)
        # Known only if all leases were read, and no tenant has messages whose lease ran out.
        is_known = leased <= LEASES and not stats.tenants
        return Sample(
            at=at,
            stats=stats,
            leases=tuple(held[:LEASES]),
            unleased=max(0, stats.processing - in_groups - len(held)) if is_known else 0,
            first_due_at=float(members_with_scores(due)[0][1]) / 1e6 if due else None,
            dead_letters=_records(dead),
            failed=_records(failed),
            groups=await self._groups(claimed, at) if claimed else (),
            paused_at=None if paused is None else _number(paused) / 1e6,
            paused_tenants=_number(paused_tenants),
            schedules=schedules,
            next_tick_at=float(members_with_scores(tick)[0][1]) / 1e6 if tick else None,
            workers=merged_workers(one for one, expires in members_with_scores(entries) if float(expires) > at * 1e6),
        )

    async def details(self, before: QueueDetails, sample: Sample) -> QueueDetails:
        """Return the tenants and the throughput."""
        tenants = await self.tenants(sample) if sample.stats.tenants else []
        return QueueDetails(
            tenants=tuple(tenants[:TENANTS_SHOWN]),
            tenants_read=len(tenants),
            rates=await self._rates(before.rates, sample.at),
        )

    async def _groups(self, claimed: dict[str, int], at: float) -> tuple[GroupLag, ...]:
        key = self.queue.key
        names = sorted(claimed)[:_GROUPS]
        states = await self.pages.send(*(("HMGET", key.group(name), "sealed", "acked", "deadline") for name in names))
        return tuple(
            GroupLag(
                name,
                messages=claimed[name],
                batches=max(0, _number(sealed) - _number(acked)),
                has_query=_number(deadline) / 1e6 > at,
                acked=_number(acked),
                since=at,
            )
            for name, (sealed, acked, deadline) in zip(names, states, strict=True)
        )

    async def tenants(self, sample: Sample, most: int = _TENANTS) -> list[TenantBacklog]:
        """Return the next tenants in turn, the longest backlog first, with the age of the first message of the top."""
        key = self.queue.key
        ring, without = await self.pages.send(("ZRANGE", key.tenant_ring, 0, most), ("LLEN", key.pending))
        names: list[bytes] = [name for name in ring if name][:most]
        if not names:
            return []
        expired = key.expired("").encode()
        waiting = await self.pages.send(*(("LLEN", self.pages.tenant_queue(name)) for name in names))
        returned = await self.pages.send(*(("ZCARD", expired + name) for name in names))
        (weights,) = await self.pages.send(("HMGET", key.weights, *names))
        rows = [
            (first + second, name, _number(weight) or 1)
            for first, second, name, weight in zip(waiting, returned, names, weights, strict=True)
        ]
        if without:
            rows.append((without, b"", 1))
        rows.sort(key=lambda row: -row[0])
        top = rows[:TENANTS_SHOWN]
        lines = [self.pages.tenant_queue(name) if name else key.pending for _, name, _ in top]
        heads = await self.pages.read([ListPart(line, "right", 0, 1) for line in lines])
        ages = [_age(head[0], sample.at) if head else None for head in heads]
        return [
            TenantBacklog(
                tenant_text(name) if name else None, pending, weight, ages[place] if place < len(top) else None
            )
            for place, (pending, name, weight) in enumerate(rows)
        ]

    async def _rates(self, before: Rates | None, at: float) -> Rates | None:
        """Return the throughput by the journal, or else by the list of handled messages."""
        key = self.queue.key
        ((journal, serial),) = await self.pages.send(("HMGET", key.meta, "journal", "journal_serial"))
        if journal is not None:
            count = _JOURNAL_WITH_PAYLOADS if journal == b"1" else _JOURNAL
            try:
                (entries,) = await self.pages.send(("XREVRANGE", key.journal, "+", "-", "COUNT", count))
            except ResponseError:  # this user may not read journals, or somebody else's key is in its place
                return None
            fields = [dict(zip(one[1][::2], one[1][1::2], strict=True)) for one in entries]
            return rates_of_journal(fields, _number(serial), len(entries) == count, before, at)
        (handled,) = await self.pages.send(("LRANGE", key.records("completed"), 0, _HANDLED - 1))
        return rates_of_records(_records(handled), at) if handled else None


def _records(stored: list[bytes]) -> tuple[MessageRecord, ...]:
    return tuple(record_of(one, decode=True) for one in pair([], stored, whole=True))


def _number(value: Any) -> int:
    """Return 0 for what is no number: another program may have written it."""
    return int(value) if value and value.isdigit() and len(value) <= 18 else 0


def _age(stored: bytes, at: float) -> float | None:
    published: datetime | None = record_of_stored(stored, decode=False).published_at
    return None if published is None else max(0.0, (moment(at) - published).total_seconds())
