"""The methods for one tenant's own queue: the asyncio shell has them as they are, the other runs them to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.stored.envelope import tenant_name

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol


class TenantQueue(ProcessBound):
    """One tenant's own queue within a shared queue."""

    def __init__(self, queue: Any, name: str) -> None:
        tenant_name(name)
        self.name = self._tenant = name
        self._queue = queue
        self._protocol: QueueProtocol = queue._protocol


class TenantMethods(TenantQueue):
    """The methods for operators."""

    async def length(self) -> int:
        """Return how many of its messages wait, without delayed ones and those in processing.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.tenant_length(self.name)

    async def exists(self) -> bool:
        """Return whether any of its messages waits.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return await TenantMethods.length(self) > 0

    async def delete(self) -> int:
        """Delete its waiting messages, and return how many there were. Delayed ones and those in processing stay.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.delete_tenant_queue(self.name)

    async def pause(self) -> bool:
        """Let no consumer claim its messages until `resume` is called, and return whether they could until now.

        Other tenants have their turns as ever. What is claimed is finished, and publishing goes on.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.pause(self.name)

    async def resume(self) -> bool:
        """Let consumers claim its messages again, and return whether it was paused.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.resume(self.name)

    async def is_paused(self) -> bool:
        """Return whether this tenant is paused. The queue can be paused even if this is False.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.is_paused(self.name)
