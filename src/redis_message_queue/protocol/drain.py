"""How a queue object ends: it refuses what is new, waits for what is under way, gives back what it may hold."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from redis_message_queue.errors import QueueDrainedError, RetryBudgetExhaustedError
from redis_message_queue.events import EventOperation
from redis_message_queue.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.protocol.intake import log_dead
from redis_message_queue.protocol.port import AttemptEnd

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

Work = tuple[int, object]
"""Something under way, and the process that it is under way in."""

# What the calls around this one have under way: a drain inside them cannot wait for them to end.
_around: ContextVar[tuple[Work, ...]] = ContextVar("redis_message_queue_under_way", default=())

Entry = tuple[Work, Token[tuple[Work, ...]]]

_LOOK_AGAIN_SECONDS = 0.01


class Gate:
    """Knows what is under way in a queue object, and shuts."""

    __slots__ = ("_interrupt", "_process", "_under_way", "is_shut")

    def __init__(self, process: Callable[[], int], interrupt: BaseGracefulInterruptHandler | None) -> None:
        self.is_shut = False
        self._interrupt = interrupt
        self._process = process
        self._under_way: set[Work] = set()

    def is_stopped(self) -> bool:
        """Whether no fresh work should be taken: by a drain, or by the user's own stop signal."""
        return self.is_shut or (self._interrupt is not None and self._interrupt.is_interrupted())

    def enter(self) -> Entry:
        """Begin something that a drain waits for. First noted, then looked: so no drain overlooks it."""
        token = (self._process(), object())
        self._under_way.add(token)
        return token, _around.set((*_around.get(), token))

    def leave(self, entry: Entry) -> None:
        token, outside = entry
        self._under_way.discard(token)
        _around.reset(outside)

    def rest(self, entry: Entry, resting: bool) -> None:
        """What only waits holds nothing, and a drain need not wait for it."""
        (self._under_way.discard if resting else self._under_way.add)(entry[0])

    def refuse_if_shut(self) -> None:
        if self.is_shut:
            error = QueueDrainedError("queue is drained")
            error.add_note("Nothing was published. A drained queue object stays drained: make another one.")
            raise error

    def others_are_under_way(self) -> bool:
        """Whether somebody else is still at work."""
        # What a fork has brought along ends in the parent, and never here.
        here = self._process()
        return any(process == here for process, _ in self._under_way.difference(_around.get()))

    def we_are_under_way(self) -> bool:
        """Whether this call was made from inside unfinished work, by a signal or a callback."""
        return bool(self._under_way.intersection(_around.get()))


def _left(queue: QueueProtocol, deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - queue.port.now())


def _never() -> bool:
    """A drain is itself the stop; its own questions end with its budget."""
    return False


async def _unheard(error: Exception, tries: int) -> None:
    """Draining has no events of its own."""


async def drain(queue: QueueProtocol, timeout: float | None) -> bool:
    """Shut the gate and tidy up. Whether nothing is under way or in doubt any more."""
    gate, port, claimer = queue.gate, queue.port, queue.store.claimer
    gate.is_shut = True
    deadline = None if timeout is None else port.now() + timeout
    while deadline is None or port.now() < deadline:
        if claimer.unsure and not gate.we_are_under_way():
            if not await _give_back_one(queue, deadline):
                break
        elif gate.others_are_under_way():
            await port.sleep(_LOOK_AGAIN_SECONDS)
        else:
            break
    return not (claimer.unsure or gate.others_are_under_way() or gate.we_are_under_way())


async def _give_back_one(queue: QueueProtocol, deadline: float | None) -> bool:
    """Ask one unsure claim what it took, and put that back to the head of the line as if nothing had happened."""
    claimer, settler = queue.store.claimer, queue.store.settler
    entry = queue.gate.enter()
    try:
        recovered = await claimer.recover(entry, _never, _unheard, _left(queue, deadline), deadline)
        if recovered is None:
            await queue.port.sleep(_LOOK_AGAIN_SECONDS)  # somebody else is asking
            return True
        attempt, found = recovered
        log_dead(found)
        try:
            if found.in_doubt:  # the time of this drain is over
                return False
            if found.claims:
                for claim in found.claims:
                    await queue.teller.tell(EventOperation.CLAIM_RECLAIM, claim=claim)
                with AttemptEnd(deadline):
                    await settler.give_back(found.claims, forgiven=True, budget=_left(queue, deadline))
            attempt.unsure = False
        finally:
            claimer.release(attempt)
    except Exception as error:
        if isinstance(error, RetryBudgetExhaustedError) or queue.port.is_transient(error):
            return False
        raise
    finally:
        claimer.unsure.leave_to_others(entry)
        queue.gate.leave(entry)
    return True
