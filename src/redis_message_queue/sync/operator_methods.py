"""The methods for operators, in the blocking shell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic

from redis_message_queue.options.queue_contract import OperatorContract
from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.operate.cancel import CancelOutcome
from redis_message_queue.protocol.operate.purge import PurgeTarget
from redis_message_queue.protocol.operate.reader import PeekSource, RecordSource
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.schedules import MissedTicks
from redis_message_queue.values.messages import MessageRecord, QueueStats, RedriveSummary, Schedule, TraceEntry


class OperatorMethods(OperatorContract, Generic[M]):
    """The methods for operators, safe while others work on the queue."""

    _protocol: QueueProtocol

    def stats(self, *, oldest: bool = True) -> QueueStats:
        return finish(self._protocol.operator.reader.stats(oldest))

    def peek(
        self, count: int = 10, *, source: PeekSource = "pending", tenant: str | None = None
    ) -> list[MessageRecord]:
        return finish(self._protocol.operator.reader.peek(count, source, tenant))

    def records(self, source: RecordSource = "dead_letters", *, max_records: int = 100) -> list[MessageRecord]:
        return finish(self._protocol.operator.reader.records(source, max_records))

    def get(self, message_id: str, *, max_messages: int = 100_000) -> MessageRecord | None:
        return finish(self._protocol.operator.finder.get(message_id, max_messages))

    def cancel(self, message_id: str) -> CancelOutcome:
        return finish(self._protocol.operator.canceller.cancel(message_id))

    def trace(self, message_id: str, *, max_entries: int = 1_000_000) -> list[TraceEntry]:
        return finish(self._protocol.operator.finder.trace(message_id, max_entries))

    def purge(self, target: PurgeTarget) -> int:
        return finish(self._protocol.operator.purger.purge(target))

    def redrive_dead_letters(
        self,
        *,
        max_messages: int | None = None,
        where: Callable[[MessageRecord], Any] | None = None,
        dry_run: bool = False,
        respect_deduplication: bool = False,
    ) -> RedriveSummary:
        redriver = self._protocol.operator.redriver
        return finish(redriver.redrive("dead_letters", max_messages, where, dry_run, respect_deduplication))

    def redrive_failed(
        self,
        *,
        max_messages: int | None = None,
        where: Callable[[MessageRecord], Any] | None = None,
        dry_run: bool = False,
        respect_deduplication: bool = False,
    ) -> RedriveSummary:
        redriver = self._protocol.operator.redriver
        return finish(redriver.redrive("failed", max_messages, where, dry_run, respect_deduplication))

    def pause(self, *, tenant: str | None = None) -> bool:
        return finish(self._protocol.operator.pauser.pause(tenant))

    def resume(self, *, tenant: str | None = None) -> bool:
        return finish(self._protocol.operator.pauser.resume(tenant))

    def is_paused(self, *, tenant: str | None = None) -> bool:
        return finish(self._protocol.operator.pauser.is_paused(tenant))

    def paused_tenants(self, *, max_tenants: int = 1_000) -> dict[str, datetime]:
        return finish(self._protocol.operator.pauser.paused_tenants(max_tenants))

    def schedule(
        self,
        name: str,
        *,
        message: M,
        cron: str | None = None,
        every_seconds: float | None = None,
        timezone: str = "UTC",
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
        missed: MissedTicks = "one",
    ) -> bool:
        return finish(
            self._protocol.scheduler.define(name, message, cron, every_seconds, timezone, tenant, headers, missed)
        )

    def schedules(self) -> list[Schedule]:
        return finish(self._protocol.scheduler.list())

    def unschedule(self, name: str) -> bool:
        return finish(self._protocol.scheduler.remove(name))

    def grow_partitions(self, partitions: int) -> int:
        return finish(self._protocol.operator.grower.grow(partitions))

    def tenants(self, *, max_tenants: int = 1_000) -> dict[str, int]:
        return finish(self._protocol.operator.reader.tenants(max_tenants))
