"""The message that a handler of the asyncio queue receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_message_queue.protocol.consume import received_message as messages
from redis_message_queue.protocol.consume.received_message import M


class ReceivedMessage(messages.ReceivedMessage[M]):
    """A message that a handler is working on, with what is known about its delivery."""

    __slots__ = ()

    async def complete(self, publish: Sequence[tuple[Any, ...]] = ()) -> None:
        """Acknowledge this message now, and publish its results in the same step: all of it happens, or nothing.

        Args:
            publish: Pairs of a queue and a message, or triples with arguments of `publish` as a dict, for example
                ``{"tenant": "acme"}``. The queues must be on the same server; on a cluster they must share a hash
                tag. A duplicate in one of them is no error.

        Raises:
            LeaseLostError: Another consumer may have the message; nothing was published.
            QueueBackpressureError: One of the queues is full; nothing was published, and the message is still yours.
            ConfigurationError: The queues are not on the same server, or a message was completed before.
            CleanupFailedError: Redis did not confirm it. All of it has happened, or nothing; you can complete it again.
        """
        await self._holder.complete(self._claim, publish)
