"""One message in the hands of one handler: how it arrives, and what becomes of it when the handler is done."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.outcome import Outcome, append_to_context

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol


class _OpenBlock:
    """What a context variable knows of an open block: its delivery, and the block around it.

    A block can be left in another thread or task than it was entered in, and a task copies the variables of the one
    that starts it. No code can reach those other contexts to clear them, so they refer to this small object, and the
    end of the block clears the object.
    """

    __slots__ = ("around", "delivery")

    def __init__(self, delivery: Delivery, around: _OpenBlock | None) -> None:
        self.delivery: Delivery | None = delivery
        self.around = around


# The innermost block of this thread or task.
_innermost: ContextVar[_OpenBlock | None] = ContextVar("redis_message_queue_delivery", default=None)


def _still_open(block: _OpenBlock | None) -> _OpenBlock | None:
    """The innermost block of a chain that is open; those that have ended are taken out of the chain."""
    while block is not None and block.delivery is None:
        block = block.around
    inner = block
    while inner is not None:
        outer = inner.around
        while outer is not None and outer.delivery is None:
            outer = outer.around
        inner.around = outer
        inner = outer
    return block


def current_message(queue: QueueProtocol) -> ReceivedMessage | None:
    """The message that the running handler of this queue holds."""
    block = _innermost.get()
    while block is not None:
        delivery = block.delivery
        if delivery is not None and delivery.queue is queue:
            return delivery.current
        block = block.around
    return None


class Delivery(Outcome):
    """Entering claims a message, leaving settles it: two calls, so that the handler runs in the shell."""

    __slots__ = ("_block", "_current", "claim", "hands_off", "payload")

    def __init__(self, queue: QueueProtocol) -> None:
        super().__init__(queue)
        self.claim: Claim | None = None
        self.payload: str | bytes | None = None
        self.hands_off = False  # leave the message as it is, whatever the handler did
        self._block: _OpenBlock | None = None
        self._current: ReceivedMessage | None = None

    @property
    def current(self) -> ReceivedMessage:
        """The message with what is known about it, made when somebody asks."""
        if self._current is None:
            assert self.claim is not None and self.payload is not None
            self._current = self.received(self.claim, self.payload)
        return self._current

    async def enter(self) -> None:
        """Claim a message and start its heartbeat; without one `payload` stays None."""
        taken = await self.take(1, self.queue.store.options.message_wait_interval_seconds)
        if not taken:
            return
        assert self.attempt is not None
        ((self.claim, self.payload),) = taken
        if self.queue.options.heartbeat_interval_seconds is not None:
            self.start_heartbeat(self.hold([self.claim]))
        self.begin_work_on([self.claim])
        self._block = _OpenBlock(self, _still_open(_innermost.get()))
        _innermost.set(self._block)
        self.queue.store.claimer.hand_over(self.attempt)

    def abandon(self) -> None:
        """Entering was broken off: what was claimed is found again by the next claim or a drain."""
        super().abandon()
        self._close()

    async def leave(self, error: BaseException | None) -> None:
        """Settle the message by how the handler ended; an exit that is not an `Exception` touches nothing."""
        claim = self.claim
        if claim is None:
            return
        self._close()
        if self.is_inherited:
            return
        await self.stop_heartbeat()
        if self.hands_off or claim in self.settled:
            return
        if error is None:
            await self.succeed([claim])
            if self._cancelled is not None:
                raise self._cancelled
        elif isinstance(error, Exception):
            await self.fail_one(claim, error)
            if self._cancelled is not None:
                append_to_context(error, self._cancelled)

    def _close(self) -> None:
        """Whoever asks for the current message no longer gets this one, in whatever order deliveries end."""
        if self.claim is not None:
            self.end_work_on([self.claim])
        self.end_lease()
        block, self._block = self._block, None
        if block is not None:
            block.delivery = None
            if _innermost.get() is block:
                _innermost.set(_still_open(block.around))
