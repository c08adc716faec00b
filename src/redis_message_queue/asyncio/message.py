"""What a handler of the asyncio queue receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_message_queue import messages


class ReceivedMessage(messages.ReceivedMessage):
    """A message in the hands of a handler, and what is known about its delivery."""

    __slots__ = ()

    async def complete(self, publish: Sequence[tuple[Any, ...]] = ()) -> None:
        """Acknowledge this message now, and publish what it has led to in the same step: all of it or nothing.

        ``publish`` holds pairs of a queue and a message, or triples with options of `publish` as a dict, such as
        ``{"tenant": "acme"}``. The queues must be on the same server, and on a cluster share a hash tag. Raises
        `LeaseLostError` if the message is not ours any more and `QueueBackpressureError` if a queue is full: then
        nothing has happened, and the message is still in hand. A duplicate at a target is no error.
        """
        await self._hold.complete(self._claim, publish)
