"""The message that a handler of the blocking queue receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_message_queue.protocol import queue_contract
from redis_message_queue.protocol.consume import received_message as messages
from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue_contract import described_as


class ReceivedMessage(messages.ReceivedMessage[M]):
    """A message that a handler is working on, with what is known about its delivery."""

    __slots__ = ()

    @described_as(queue_contract.complete)
    def complete(self, publish: Sequence[tuple[Any, ...]] = ()) -> None:
        finish(self._holder.complete(self._claim, publish))
