"""The schedules of a queue: each is in the part that its messages go to."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from redis_message_queue.protocol.parts import Part
from redis_message_queue.protocol.schedules import MissedTicks, PartScheduler, checked_name
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.values.messages import Schedule
from redis_message_queue.values.plain_values import plain

_NEVER = datetime.max.replace(tzinfo=UTC)


class Scheduler:
    """Defines a schedule in the part of its tenant, or of its own name."""

    def __init__(self, parts: Sequence[PartScheduler]) -> None:
        self._parts = tuple(parts)

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
        """Store a schedule; returns False if it was there already, exactly like this."""
        key = plain(checked_name(name)) if tenant is None else tenant_name(tenant).decode()
        own = self._parts[partition_of(key, len(self._parts))]
        defined = await own.define(name, message, cron, every_seconds, timezone, tenant, given_headers, missed)
        # The schedule had another tenant, or the queue had fewer parts.
        for other in self._parts:
            if other is not own:
                await other.remove(name)
        return defined

    async def remove(self, name: str) -> bool:
        """Remove a schedule; returns whether there was one."""
        return any([await one.remove(name) for one in self._parts])

    async def list(self) -> builtins.list[Schedule]:
        """Return all schedules, those with the next tick first."""
        found = [schedule for one in self._parts for schedule in await one.list()]
        return sorted(found, key=lambda schedule: schedule.next_tick or _NEVER)

    async def publish_due(self, limit: float | None, part: Part | None = None) -> None:
        """Publish the ticks that are due: those of one part, or of all if that is None."""
        for one in self._parts:
            if part is None or one.is_of(part):
                await one.publish_due(limit)
