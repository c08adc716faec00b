"""One tenant's queue, for the sync shell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Generic

from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.port import finish
from redis_message_queue.stored.envelope import tenant_name

if TYPE_CHECKING:
    from redis_message_queue.sync.message_queue import RedisMessageQueue


class Tenant(ProcessBound, Generic[M]):
    """One tenant's own queue within a shared queue."""

    def __init__(self, queue: RedisMessageQueue[M], name: str) -> None:
        tenant_name(name)
        self.name = self._tenant = name
        self._queue = queue
        self._protocol = queue._protocol

    def publish(self, message: M, *, delay_seconds: float | None = None, at: datetime | None = None) -> bool:
        """Add a message to this tenant's queue. Returns False if deduplication suppressed it.

        Args:
            message: A str, or a dict that can be encoded as JSON; with a ``codec``, what it encodes.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).

        Raises:
            Exception: What `RedisMessageQueue.publish` raises.
        """
        return self._queue.publish(message, tenant=self.name, delay_seconds=delay_seconds, at=at)

    def publish_many(
        self,
        messages: Iterable[M],
        *,
        delay_seconds: float | None = None,
        at: datetime | None = None,
    ) -> list[bool]:
        """Add many messages to this tenant's queue, in their order.

        Args:
            messages: An iterable of str or dict; with a ``codec``, of what it encodes.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).

        Raises:
            Exception: What `RedisMessageQueue.publish_many` raises.
        """
        return self._queue.publish_many(messages, tenant=self.name, delay_seconds=delay_seconds, at=at)

    def length(self) -> int:
        """Return how many of its messages wait, without delayed ones and those in processing.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return finish(self._protocol.operator.reader.tenant_length(self.name))

    def exists(self) -> bool:
        """Return whether any of its messages waits.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return self.length() > 0

    def delete(self) -> int:
        """Delete its waiting messages, and return how many there were. Delayed ones and those in processing stay.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return finish(self._protocol.operator.purger.delete_tenant_queue(self.name))

    def pause(self) -> bool:
        """Let no consumer claim its messages until `resume` is called, and return whether they could until now.

        Other tenants have their turns as ever. What is claimed is finished, and publishing goes on.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return self._queue.pause(tenant=self.name)

    def resume(self) -> bool:
        """Let consumers claim its messages again, and return whether it was paused.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return self._queue.resume(tenant=self.name)

    def is_paused(self) -> bool:
        """Return whether this tenant is paused. The queue can be paused even if this is False.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return self._queue.is_paused(tenant=self.name)
