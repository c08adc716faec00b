"""The contract of a custom gateway, for the sync queue."""

from __future__ import annotations

from abc import ABC, abstractmethod

from redis_message_queue.process.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.protocol.gateway.gateway_contract import GatewayContract
from redis_message_queue.values.messages import ClaimedMessage


class AbstractRedisGateway(GatewayContract, ABC):
    """Where a queue keeps its messages, in seven operations. Queues are named by their whole Redis key.

    A gateway that leases messages sets ``message_visibility_timeout_seconds``, returns them as `ClaimedMessage`, and
    refuses to settle or renew a message whose lease token is not the current one.
    """

    @abstractmethod
    def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        """Add a message unless ``dedup_key`` was published before. Returns False if it was."""

    @abstractmethod
    def add_message(self, queue: str, message: str) -> None:
        """Add a message to a queue."""

    @abstractmethod
    def move_message(
        self, from_queue: str, to_queue: str, message: str | bytes, *, lease_token: str | None = None
    ) -> bool:
        """Move a claimed message. Returns False if its lease was lost."""

    @abstractmethod
    def remove_message(self, queue: str, message: str | bytes, *, lease_token: str | None = None) -> bool:
        """Remove a claimed message. Returns False if its lease was lost."""

    @abstractmethod
    def renew_message_lease(
        self,
        queue: str,
        message: str | bytes,
        lease_token: str,
        *,
        is_interrupted: BaseGracefulInterruptHandler | None = None,
    ) -> bool:
        """Renew a lease. Returns False if it was lost. Stop retrying when ``is_interrupted`` says so."""

    @abstractmethod
    def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | str | bytes | None:
        """Wait for the next message and claim it. Returns None if there was none."""

    @abstractmethod
    def trim_queue(self, queue: str, max_length: int) -> None:
        """Delete the oldest entries of a list until ``max_length`` are left."""
