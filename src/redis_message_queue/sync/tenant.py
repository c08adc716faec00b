"""One tenant's queue, for the sync shell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Generic

from redis_message_queue.options.queue_contract import TenantContract
from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.port import finish
from redis_message_queue.stored.envelope import tenant_name

if TYPE_CHECKING:
    from redis_message_queue.sync.message_queue import RedisMessageQueue


class Tenant(TenantContract, ProcessBound, Generic[M]):
    """One tenant's own queue within a shared queue."""

    def __init__(self, queue: RedisMessageQueue[M], name: str) -> None:
        tenant_name(name)
        self.name = self._tenant = name
        self._queue = queue
        self._protocol = queue._protocol

    def publish(
        self,
        message: M,
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
        messages: Iterable[M],
        *,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        timeout_seconds: float | None = None,
    ) -> list[bool]:
        return self._queue.publish_many(
            messages, tenant=self.name, delay_seconds=delay_seconds, at=at, timeout_seconds=timeout_seconds
        )

    def length(self) -> int:
        return finish(self._protocol.operator.tenant_length(self.name))

    def exists(self) -> bool:
        return self.length() > 0

    def delete(self) -> int:
        return finish(self._protocol.operator.delete_tenant_queue(self.name))

    def pause(self) -> bool:
        return self._queue.pause(tenant=self.name)

    def resume(self) -> bool:
        return self._queue.resume(tenant=self.name)

    def is_paused(self) -> bool:
        return self._queue.is_paused(tenant=self.name)
