"""The schedules of a queue with partitions: each is in the partition that its messages go to."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from redis_message_queue.protocol.schedules import MissedTicks, Scheduler, checked_name
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.values.messages import Schedule
from redis_message_queue.values.plain_values import plain

_NEVER = datetime.max.replace(tzinfo=UTC)


class PartitionedScheduler(Scheduler):
    """Defines a schedule in the partition of its tenant, or of its own name."""

    def __init__(self, schedulers: Sequence[Scheduler]) -> None:
        self.parts = tuple(schedulers)

    async def define(
        self,
        name: str,
        message: Any,
        cron: str | None,
        every_seconds: float | None,
        timezone: str,
        tenant: str | None,
        given_headers: Any,
        missed: MissedTicks,
    ) -> bool:
        key = plain(checked_name(name)) if tenant is None else tenant_name(tenant).decode()
        number = partition_of(key, len(self.parts))
        defined = await self.parts[number].define(
            name, message, cron, every_seconds, timezone, tenant, given_headers, missed
        )
        # It had another tenant, or the queue had fewer partitions.
        for other in self.parts:
            if other is not self.parts[number]:
                await other.remove(name)
        return defined

    async def remove(self, name: str) -> bool:
        return any([await one.remove(name) for one in self.parts])

    async def list(self) -> builtins.list[Schedule]:
        found = [schedule for one in self.parts for schedule in await one.list()]
        return sorted(found, key=lambda schedule: schedule.next_tick or _NEVER)

    async def publish_due(self, limit: float | None) -> None:
        for one in self.parts:
            await one.publish_due(limit)
