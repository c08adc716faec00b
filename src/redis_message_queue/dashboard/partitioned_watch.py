"""Watches a queue with partitions: each of them as a queue of its own, and all of them as one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from redis_message_queue.asyncio import RedisMessageQueue
from redis_message_queue.dashboard import rates
from redis_message_queue.dashboard.sample import (
    LEASES,
    RECORDS,
    TENANTS_SHOWN,
    GroupLag,
    QueueDetails,
    Sample,
    Sampler,
    TenantBacklog,
)
from redis_message_queue.dashboard.verdict import Finding, Level, findings, unreachable
from redis_message_queue.dashboard.watch import INTERVAL_SECONDS, QueueWatch, Watch, urgency
from redis_message_queue.protocol.operate.operator import in_order, summed

_AT_ONCE = 4  # partitions that are read at the same time
_SHOWN = 100  # partitions on the page of the queue
_NAMED = 5  # partitions that have their own line in the verdict
_FEWEST_TENANTS = 50  # of each partition


class PartWatch(QueueWatch):
    """Watches one partition. Its verdict needs the others, because consumers serve all of them in turn."""

    whole: PartitionedWatch

    def __init__(self, whole: PartitionedWatch, number: int) -> None:
        super().__init__(f"{whole.name}, partition {number}", whole.queue.partition(number))
        self.short_name = f"Partition {number}"
        self.address = whole.address | {"partition": str(number)}
        self.whole = whole
        self.number = number

    async def look(self, seconds: float = INTERVAL_SECONDS, *, closely: bool = False) -> None:
        await self.whole.look(seconds, closely=closely)


class PartitionedWatch(Watch):
    """Watches all partitions of a queue, and adds up what they have."""

    parts: Sequence[PartWatch]

    def __init__(self, name: str, queue: RedisMessageQueue) -> None:
        super().__init__(name, queue)
        self.parts = tuple(PartWatch(self, number) for number in range(queue.partitions))
        self._lock = asyncio.Lock()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @property
    def samplers(self) -> Sequence[Sampler]:
        return [part.sampler for part in self.parts]

    @property
    def is_outdated(self) -> bool:
        return any(part.is_outdated for part in self.parts)

    @property
    def shown_parts(self) -> list[PartWatch]:
        """The partitions that need attention most, in the order of their numbers."""
        return sorted(sorted(self.parts, key=urgency)[:_SHOWN], key=lambda part: part.number)

    async def look(self, seconds: float = INTERVAL_SECONDS, *, closely: bool = False) -> None:
        """Read the partitions, unless that was done these seconds ago."""

        async def read(part: PartWatch) -> None:
            async with self._turns:
                await part.read(seconds, closely=closely)

        async with self._lock:
            await asyncio.gather(*map(read, self.parts))
            self._add_up()

    def _add_up(self) -> None:
        readable = [part for part in self.parts if part.now is not None]
        if not readable:
            self.error = self.parts[0].error
            self.findings = [unreachable(self.error or "no partition answers")]
            return
        self.error = None
        sample = summed_sample([part.now for part in readable if part.now is not None])
        if not self.history or sample.at > self.history[-1].at:
            self.keep(sample)
        self.details = summed_details([part.details for part in readable])
        among = tuple(self.history)
        for part in readable:
            part.findings = findings(tuple(part.history), among)
        self.findings = _findings_of_whole(among, self.parts)

    async def tenants(self, most: int) -> list[TenantBacklog]:
        each = max(_FEWEST_TENANTS, most // len(self.parts))
        return merged_tenants([await part.tenants(each) for part in self.parts])

    def address_of(self, finding: Finding) -> dict[str, str]:
        return self.address if finding.partition is None else self.parts[finding.partition].address


def _findings_of_whole(history: Sequence[Sample], parts: Sequence[PartWatch]) -> list[Finding]:
    """Return what there is to say about the whole, and about partitions that need more attention than it does."""
    found, worst = findings(history), min(part.headline.level for part in parts)
    if worst > Level.STUCK:  # what waits in a partition that somebody has paused is no sign of missing consumers
        found = [one for one in found if one.level > Level.STUCK]
    level = found[0].level if found else Level.IDLE
    is_paused = history[-1].paused_at is not None

    def is_named(part: PartWatch) -> bool:
        # What all partitions have together says nothing about one that cannot be read, or is paused alone.
        is_apart = part.now is None or (part.now.paused_at is not None and not is_paused)
        return part.headline.level <= Level.WARNING and (part.headline.level < level or is_apart)

    named = sorted(filter(is_named, parts), key=lambda part: part.headline.level)
    own = [
        replace(part.headline, text=f"Partition {part.number}: {part.headline.text}", partition=part.number)
        for part in named[:_NAMED]
    ]
    if more := len(named) - len(own):
        need = "partition needs" if more == 1 else "partitions need"
        own.append(Finding(named[_NAMED].headline.level, f"{more} more {need} attention."))
    return sorted((*own, *found), key=lambda one: one.level)


def summed_sample(parts: Sequence[Sample]) -> Sample:
    """Return what partitions have together; the oldest message is that of the partition where it waits longest."""
    paused = [one.paused_at for one in parts]
    return Sample(
        at=max(one.at for one in parts),
        stats=summed([one.stats for one in parts]),
        leases=tuple(sorted((lease for one in parts for lease in one.leases), key=lambda one: one.ends_at)[:LEASES]),
        unleased=sum(one.unleased for one in parts),
        first_due_at=_first(one.first_due_at for one in parts),
        dead_letters=tuple(in_order([one.dead_letters for one in parts], "dead_letters")[:RECORDS]),
        failed=tuple(in_order([one.failed for one in parts], "failed")[:RECORDS]),
        groups=_merged_groups(parts),
        paused_at=None if None in paused else max(at for at in paused if at is not None),
        paused_tenants=max(one.paused_tenants for one in parts),
        schedules=sum(one.schedules for one in parts),
        next_tick_at=_first(one.next_tick_at for one in parts),
        saw_claim=any(one.saw_claim for one in parts),
    )


def _first(times: Iterable[float | None]) -> float | None:
    return min((at for at in times if at is not None), default=None)


def _merged_groups(parts: Sequence[Sample]) -> tuple[GroupLag, ...]:
    merged: dict[str, GroupLag] = {}
    for one in (group for part in parts for group in part.groups):
        other = merged.get(one.name)
        merged[one.name] = (
            one
            if other is None
            else GroupLag(
                one.name,
                messages=one.messages + other.messages,
                batches=one.batches + other.batches,
                has_query=one.has_query and other.has_query,
                acked=one.acked + other.acked,
                since=min(one.since, other.since),
            )
        )
    return tuple(merged[name] for name in sorted(merged))


def summed_details(parts: Sequence[QueueDetails]) -> QueueDetails:
    """Return what only the page of the queue shows, for all partitions."""
    return QueueDetails(
        tenants=tuple(merged_tenants([part.tenants for part in parts])[:TENANTS_SHOWN]),
        tenants_read=sum(part.tenants_read for part in parts),
        rates=rates.summed([part.rates for part in parts]),
    )


def merged_tenants(parts: Iterable[Iterable[TenantBacklog]]) -> list[TenantBacklog]:
    """Return the tenants of all partitions, the longest backlog first. One can wait in several of them."""
    merged: dict[str | None, TenantBacklog] = {}
    for one in (tenant for part in parts for tenant in part):
        other = merged.get(one.name)
        if other is not None:
            ages = [age for age in (one.oldest_seconds, other.oldest_seconds) if age is not None]
            one = replace(one, pending=one.pending + other.pending, oldest_seconds=max(ages, default=None))
        merged[one.name] = one
    return sorted(merged.values(), key=lambda one: -one.pending)
