"""A block with one message: entering claims it, leaving settles it by how the handler ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt
from redis_message_queue.protocol.consume.consumer import ClaimedPayload, Consumer
from redis_message_queue.protocol.consume.delivery import Ending, append_to_context
from redis_message_queue.protocol.consume.received_message import ReceivedMessage

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol


class _OpenBlock:
    """What a context variable knows of an open block: the block itself, and the one around it.

    A block can be left in another thread or task than it was entered in, and a task copies the variables of the one
    that starts it. No code can reach those other contexts to clear them, so they refer to this small object, and the
    end of the block clears the object.
    """

    __slots__ = ("around", "block")

    def __init__(self, block: MessageBlock, around: _OpenBlock | None) -> None:
        self.block: MessageBlock | None = block
        self.around = around


# The innermost block of this thread or task.
_innermost: ContextVar[_OpenBlock | None] = ContextVar("redis_message_queue_delivery", default=None)


def _still_open(entry: _OpenBlock | None) -> _OpenBlock | None:
    """The innermost block of a chain that is open; those that have ended are taken out of the chain."""
    while entry is not None and entry.block is None:
        entry = entry.around
    inner = entry
    while inner is not None:
        outer = inner.around
        while outer is not None and outer.block is None:
            outer = outer.around
        inner.around = outer
        inner = outer
    return entry


def current_message(queue: QueueProtocol) -> ReceivedMessage[Any] | None:
    """The message that the running handler of this queue holds."""
    entry = _innermost.get()
    while entry is not None:
        block = entry.block
        if block is not None and block.queue is queue:
            return block.current
        entry = entry.around
    return None


class MessageBlock:
    """One message for one handler, which runs in the shell: between `begin` and `leave`."""

    __slots__ = ("_current", "_open_block", "claimed", "consumer", "is_left_alone", "payload", "queue")

    def __init__(self, queue: QueueProtocol) -> None:
        self.queue = queue
        self.consumer = Consumer(queue)
        self.claimed: Claim | None = None
        self.payload: Any = None
        self.is_left_alone = False  # leave the message to its lease, whatever the handler did
        self._open_block: _OpenBlock | None = None
        self._current: ReceivedMessage[Any] | None = None

    @property
    def current(self) -> ReceivedMessage[Any]:
        """The message with what is known about it, made on demand."""
        if self._current is None:
            assert self.claimed is not None and self.payload is not None
            self._current = self.consumer.received(self.claimed, self.payload)
        return self._current

    def begin(self, taken: Sequence[ClaimedPayload]) -> ClaimAttempt | None:
        """Hold the message for its handler; None without one. The shell marks the attempt as handed over."""
        if not taken:
            return None
        ((claim, self.payload),) = taken
        self.claimed = claim
        holding = self.consumer.holding
        if (interval := self.queue.options.heartbeat_interval_seconds) is not None:
            holding.start_heartbeat(holding.lease_for([claim]), interval)
        if not holding.has_leases:
            holding.begin_work_on([claim])
        around = _innermost.get()
        self._open_block = _OpenBlock(self, None if around is None else _still_open(around))
        _innermost.set(self._open_block)
        return self.consumer.offer()

    def abandon(self) -> None:
        """Entering was interrupted: the next claim or a drain recovers what was claimed."""
        self.consumer.abandon()
        self._close()

    async def leave(self, error: BaseException | None) -> bool:
        """Settle the message by how the handler ended; an exit that is not an `Exception` touches nothing.

        Returns whether that was all: an outcome that the handler raised and Redis confirmed goes no further.
        """
        claim, holding, delivery = self.claimed, self.consumer.holding, self.consumer.delivery
        if claim is None:
            return False
        self._close()
        if holding.is_forked:
            return False
        if self.queue.options.heartbeat_interval_seconds is not None:
            await delivery.undisturbed(holding.stop_heartbeat())
        if self.is_left_alone or claim in self.consumer.completed:
            return False
        if error is None:
            await delivery.ack([claim])
            if delivery.cancellations:
                delivery.raise_if_cancelled()
        elif isinstance(error, Exception):
            ending = await delivery.handler_raised(claim, error)
            if delivery.can_apply(error) and ending is not Ending.UNCONFIRMED:
                delivery.raise_if_cancelled()
                return True
            if delivery.cancellations:
                append_to_context(error, delivery.cancellations[0])
        return False

    def _close(self) -> None:
        """The message is no longer the current one, in whatever order blocks end."""
        holding = self.consumer.holding
        if self.claimed is not None and not holding.has_leases:
            holding.end_work_on([self.claimed])
        holding.end_lease()
        open_block, self._open_block = self._open_block, None
        if open_block is not None:
            open_block.block = None
            if _innermost.get() is open_block:
                around = open_block.around
                _innermost.set(None if around is None else _still_open(around))
