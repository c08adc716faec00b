"""The consumer of a loop: it claims until the loop ends, as many messages as there are idle handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_message_queue.protocol.consume.consumer import Consumer
from redis_message_queue.protocol.consume.settle import PiggybackedAck

if TYPE_CHECKING:
    from redis_message_queue.protocol.loop.prefetcher import Prefetcher
    from redis_message_queue.protocol.parts import Part
    from redis_message_queue.protocol.queue import QueueProtocol


class LoopConsumer(Consumer):
    """Claims for all workers of a loop. Nobody waits for its end, so its claims may use the whole retry budget."""

    __slots__ = ("_prefetcher", "is_ended")

    def __init__(self, queue: QueueProtocol, prefetcher: Prefetcher) -> None:
        super().__init__(queue, keeps_failures=True, in_loop=True)
        self._prefetcher = prefetcher
        self.is_ended = False  # the loop has ended

    def is_stopped(self) -> bool:
        return self.is_ended or self.holding.is_forked or self.queue.is_stopped()

    def wanted(self) -> int:
        return self._prefetcher.claim_size()

    async def before_wait(self, acks: list[PiggybackedAck]) -> None:
        await self._prefetcher.acks.confirm(acks, self.delivery.cancellations)
        self.delivery.raise_if_cancelled()

    def on_away(self, part: Part) -> bool:
        return self._prefetcher.late.watch(part)
