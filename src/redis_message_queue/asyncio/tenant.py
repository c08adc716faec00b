"""One tenant's queue, for the async shell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.operate.tenant_methods import TenantMethods
from redis_message_queue.protocol.queue_contract import TenantContract

if TYPE_CHECKING:
    from redis_message_queue.asyncio.message_queue import RedisMessageQueue


class Tenant(TenantContract, TenantMethods, Generic[M]):
    """One tenant's own queue within a shared queue."""

    _queue: RedisMessageQueue[M]

    async def publish(
        self,
        message: M | dict[str, Any],
        *,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        timeout_seconds: float | None = None,
    ) -> bool:
        return await self._queue.publish(
            message, tenant=self.name, delay_seconds=delay_seconds, at=at, timeout_seconds=timeout_seconds
        )

    async def publish_many(
        self,
        messages: Iterable[M | dict[str, Any]],
        *,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        timeout_seconds: float | None = None,
    ) -> list[bool]:
        return await self._queue.publish_many(
            messages, tenant=self.name, delay_seconds=delay_seconds, at=at, timeout_seconds=timeout_seconds
        )
