"""The contract of a gateway of one's own, for the blocking queue."""

from __future__ import annotations

from abc import ABC, abstractmethod

from redis_message_queue.custom_gateway import GatewayContract
from redis_message_queue.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.messages import ClaimedMessage


class AbstractRedisGateway(GatewayContract, ABC):
    """Where a queue keeps its messages, in seven operations; every name in them is a whole key.

    A gateway that leases its messages says so with ``message_visibility_timeout_seconds``, hands them over as
    `ClaimedMessage` and lets nobody settle or renew one whose lease token is not the present one.
    """

    @abstractmethod
    def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        """Put a message into the line unless ``dedup_key`` is remembered. False if it was."""

    @abstractmethod
    def add_message(self, queue: str, message: str) -> None:
        """Put a message into the line."""

    @abstractmethod
    def move_message(
        self, from_queue: str, to_queue: str, message: str | bytes, *, lease_token: str | None = None
    ) -> bool:
        """Move a message that is held. False if it is not held any more."""

    @abstractmethod
    def remove_message(self, queue: str, message: str | bytes, *, lease_token: str | None = None) -> bool:
        """Remove a message that is held. False if it is not held any more."""

    @abstractmethod
    def renew_message_lease(
        self,
        queue: str,
        message: str | bytes,
        lease_token: str,
        *,
        is_interrupted: BaseGracefulInterruptHandler | None = None,
    ) -> bool:
        """Begin a lease anew. False if it was lost. Retries should end when ``is_interrupted`` says so."""

    @abstractmethod
    def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | str | bytes | None:
        """Claim the next message, waiting for it as long as seems right. None if there was none."""

    @abstractmethod
    def trim_queue(self, queue: str, max_length: int) -> None:
        """Keep only the newest of a list."""
