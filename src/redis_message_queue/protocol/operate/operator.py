"""What operators do with a live queue: the same in each of its parts, and one answer."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from redis_message_queue.protocol.operate.cancel import CancelOutcome
from redis_message_queue.protocol.operate.growth import Grower
from redis_message_queue.protocol.operate.part_operator import PartOperator
from redis_message_queue.protocol.operate.why import Explainer
from redis_message_queue.protocol.operate.workers import about_workers
from redis_message_queue.values.checks import whole_number
from redis_message_queue.values.errors import JournalError, LuaScriptError, PartitionCountError
from redis_message_queue.values.messages import (
    ConnectedWorker,
    Explanation,
    MessageRecord,
    QueueStats,
    RedriveSummary,
    TraceEntry,
)

T = TypeVar("T")

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Operator:
    """Asks all parts of a queue for what a `PartOperator` does with one, and checks their number first."""

    def __init__(self, operators: Sequence[PartOperator], check: Callable[[], Awaitable[None]], grower: Grower) -> None:
        self._operators = operators
        self._check = check
        self.grower = grower

    async def _of_each(self, ask: Callable[[PartOperator], Awaitable[T]]) -> list[T]:
        await self._check()
        return [await ask(one) for one in self._operators]

    async def why(self, message_id: str) -> Explanation:
        """Return why a message is not done, or what became of it."""
        await self._check()
        return await Explainer(self._operators).explain(message_id)

    async def stats(self, oldest: bool) -> QueueStats:
        return summed(await self._of_each(lambda one: one.reader.stats(oldest)))

    async def tenants(self, max_tenants: int) -> dict[str, int]:
        """Return how many messages of each tenant wait, in turns of the partitions."""
        parts = await self._of_each(lambda one: one.reader.tenants(max_tenants))
        waiting: dict[str, int] = {}
        for tenant, count in _in_turn([list(one.items()) for one in parts]):
            waiting[tenant] = waiting.get(tenant, 0) + count
        return dict(itertools.islice(waiting.items(), max_tenants))

    async def workers(self, max_workers: int) -> list[ConnectedWorker]:
        """Return the processes that work on the queue, which say so in its first part."""
        await self._check()
        return await self._operators[0].workers.connected(max_workers)

    async def about_workers(self) -> str:
        """Return what there is to say about the connected workers."""
        counts = await self.stats(False)
        first = self._operators[0]
        now_us = await first.pages.server_time()
        workers = await first.workers.by_process(now_us)
        seen = not workers and any([await one.workers.saw_claim(now_us / 1e6) for one in self._operators])
        return about_workers(workers.values(), now_us / 1e6, busy=counts.processing > 0, claims_seen=seen)

    async def tenant_length(self, tenant: str) -> int:
        return sum(await self._of_each(lambda one: one.reader.tenant_length(tenant)))

    async def records(self, source: str, count: int) -> list[MessageRecord]:
        parts = await self._of_each(lambda one: one.reader.records(source, count))
        return in_order(parts, source)[:count]

    async def peek(self, count: int, source: str, tenant: str | None) -> list[MessageRecord]:
        """Return the next messages: of waiting ones and those in flight, one of each partition in turn."""
        return in_order(await self._of_each(lambda one: one.reader.peek(count, source, tenant)), source)[:count]

    async def get(self, message_id: str, max_messages: int) -> MessageRecord | None:
        await self._check()
        for one in self._operators:
            if (record := await one.finder.get(message_id, max_messages)) is not None:
                return record
        return None

    async def trace(self, message_id: str, max_entries: int) -> list[TraceEntry]:
        """Return what the journals say: a message has only ever been in one partition."""
        await self._check()
        missing: JournalError | None = None
        without = 0
        for one in self._operators:
            try:
                if entries := await one.finder.trace(message_id, max_entries):
                    return entries
            except JournalError as error:  # a partition that had no message yet has no journal either
                missing, without = error, without + 1
        if missing is not None and without == len(self._operators):
            raise missing
        return []

    async def cancel(self, message_id: str) -> CancelOutcome:
        """Ask one partition after the other until one knows the message; it is marked where messages wait.

        A message stays in its partition: if one knows it, the marks in others are withdrawn.
        """
        await self._check()
        marked: list[PartOperator] = []
        refusal: LuaScriptError | None = None
        for one in self._operators:
            try:
                found = await one.canceller.cancel(message_id)
            except LuaScriptError as error:  # no memory for a mark; the message may be delayed in another partition
                refusal = refusal or error
                continue
            if found in ("cancelled", "in_flight"):
                for other in marked:
                    await other.canceller.withdraw(message_id)
                return found
            if found == "marked":
                marked.append(one)
        if refusal is not None:
            raise refusal
        return "marked" if marked else "unknown"

    async def pause(self, tenant: str | None = None) -> bool:
        """Pause all partitions, or the tenant in all of them. Returns whether any was running."""
        return await self._send_pause(tenant, pauses=True)

    async def resume(self, tenant: str | None = None) -> bool:
        """Resume all partitions, or the tenant in all of them. Returns whether any was paused."""
        return await self._send_pause(tenant, pauses=False)

    async def _send_pause(self, tenant: str | None, *, pauses: bool) -> bool:
        """Begin with the first partition, from which new ones get their pauses.

        If the queue grows after that, go on with all partitions that it has then: a pause holds for all or for none.
        """
        await self._check()
        first, *others = [one.pauser for one in self._operators]
        has_changed = await first.send(tenant, pauses=pauses)
        try:
            changes = [await one.send(tenant, pauses=pauses) for one in others]
        except PartitionCountError:
            changes = [await one.send(tenant, pauses=pauses) for one in await self.grower.pausers()]
        if has_changed or any(changes):
            has_changed = True
            self._operators[0].pauser.log_change(tenant, pauses=pauses)
        return has_changed

    async def is_paused(self, tenant: str | None = None) -> bool:
        """Return whether all partitions are paused."""
        return all(await self._of_each(lambda one: one.pauser.is_paused(tenant)))

    async def paused_tenants(self, max_tenants: int) -> dict[str, datetime]:
        """Return the tenants that are paused in any partition, and since when."""
        found: dict[str, datetime] = {}
        for part in await self._of_each(lambda one: one.pauser.paused_tenants(max_tenants)):
            for tenant, since in part.items():
                found[tenant] = min(since, found.get(tenant, since))
        return dict(sorted(found.items())[:max_tenants])

    async def purge(self, target: str) -> int:
        return sum(await self._of_each(lambda one: one.purger.purge(target)))

    async def delete_tenant_queue(self, tenant: str) -> int:
        return sum(await self._of_each(lambda one: one.purger.delete_tenant_queue(tenant)))

    async def redrive(
        self,
        source: str,
        max_messages: int | None,
        where: Callable[[MessageRecord], Any] | None,
        dry_run: bool,
        respect_deduplication: bool,
    ) -> RedriveSummary:
        """Redrive partition by partition. A message stays in its partition."""
        whole_number("max_messages", max_messages, optional=True)
        await self._check()
        total = RedriveSummary(matched=0, redriven=0, suppressed=0)
        for one in self._operators:
            left = None if max_messages is None else max_messages - total.matched
            if left == 0:
                break
            done = await one.redriver.redrive(source, left, where, dry_run, respect_deduplication)
            total = RedriveSummary(
                matched=total.matched + done.matched,
                redriven=total.redriven + done.redriven,
                suppressed=total.suppressed + done.suppressed,
            )
        return total


def summed(parts: Sequence[QueueStats]) -> QueueStats:
    """Return the sums. A tenant with messages in two partitions counts twice; it is paused in all of them."""
    fields = ("pending", "processing", "delayed", "completed", "failed", "dead_letters", "tenants")
    ages = [one.oldest_pending_seconds for one in parts if one.oldest_pending_seconds is not None]
    return QueueStats(
        **{name: sum(getattr(one, name) for one in parts) for name in fields},
        oldest_pending_seconds=max(ages, default=None),
        paused=all(one.paused for one in parts),
        paused_tenants=max(one.paused_tenants for one in parts),
    )


def in_order(parts: Sequence[Sequence[MessageRecord]], source: str) -> list[MessageRecord]:
    """Return what each partition has of a source as one list: terminal lists newest first, else the next one first."""
    if len(parts) == 1:
        return list(parts[0])
    if source in ("completed", "failed", "dead_letters"):
        return _newest_first(parts)
    if source == "delayed":
        return sorted(itertools.chain(*parts), key=lambda one: one.due_at or _LONG_AGO)
    return _in_turn(parts)


def _newest_first(parts: Sequence[Sequence[MessageRecord]]) -> list[MessageRecord]:
    return sorted(itertools.chain(*parts), key=lambda one: one.finished_at or _LONG_AGO, reverse=True)


def _in_turn(parts: Sequence[Sequence[T]]) -> list[T]:
    """Return the first of each part, then the second of each, and so on."""
    rows = itertools.zip_longest(*parts, fillvalue=_MISSING)
    return [one for row in rows for one in row if one is not _MISSING]


_MISSING: Any = object()
