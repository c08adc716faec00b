"""Adds up what the parts of a queue have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from redis_message_queue.dashboard import rates
from redis_message_queue.dashboard.sample import (
    LEASES,
    RECORDS,
    TENANTS_SHOWN,
    GroupLag,
    QueueDetails,
    Sample,
    TenantBacklog,
)
from redis_message_queue.protocol.operate.operator import in_order, summed


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
        workers={process: one for part in parts for process, one in part.workers.items()},
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
