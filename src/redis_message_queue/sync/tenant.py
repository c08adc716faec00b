"""One tenant's queue, for the sync shell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.operate.tenant_methods import TenantMethods, TenantQueue
from redis_message_queue.protocol.queue_contract import TenantContract
from redis_message_queue.sync.blocking import blocking

if TYPE_CHECKING:
    from redis_message_queue.sync.message_queue import RedisMessageQueue


class Tenant(TenantContract, TenantQueue, Generic[M]):
    """One tenant's own queue within a shared queue."""

    _queue: RedisMessageQueue[M]

    def publish(
        self,
        message: M | dict[str, Any],
        *,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        timeout_seconds: float | None = None,
    ) -> bool:
        return self._queue.publish(
            message, tenant=self.name, delay_seconds=delay_seconds, at=at, timeout_seconds=timeout_seconds
        )

    def publish_many(
        self,
        messages: Iterable[M | dict[str, Any]],
        *,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        timeout_seconds: float | None = None,
    ) -> list[bool]:
        return self._queue.publish_many(
            messages, tenant=self.name, delay_seconds=delay_seconds, at=at, timeout_seconds=timeout_seconds
        )

    length = blocking(TenantMethods.length)
    exists = blocking(TenantMethods.exists)
    delete = blocking(TenantMethods.delete)
    pause = blocking(TenantMethods.pause)
    resume = blocking(TenantMethods.resume)
    is_paused = blocking(TenantMethods.is_paused)
