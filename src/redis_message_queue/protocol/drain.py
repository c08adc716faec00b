"""Draining: a queue object refuses new work, waits for what is under way, and requeues what it may hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import partial
from typing import TYPE_CHECKING

from redis_message_queue.process.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.protocol.consume.claim import Claimant
from redis_message_queue.protocol.port import AttemptEnd, Pause
from redis_message_queue.values.errors import QueueDrainedError, RetryBudgetExhaustedError
from redis_message_queue.values.events import EventOperation

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol
    from redis_message_queue.protocol.store import Store

Work = tuple[int, object]
"""An operation that is under way, and its process."""

# What the calls around this one have under way: a drain inside them cannot wait for them to end.
_around: ContextVar[tuple[Work, ...]] = ContextVar("redis_message_queue_under_way", default=())

Entry = tuple[Work, Token[tuple[Work, ...]]]

_LOOK_AGAIN_SECONDS = 0.01


class DrainGate:
    """Counts what is under way in a queue object, and can be shut."""

    __slots__ = ("_ends_at", "_interrupt", "_process", "_under_way", "is_shut")

    def __init__(self, process: Callable[[], int], interrupt: BaseGracefulInterruptHandler | None) -> None:
        self.is_shut = False
        self._ends_at = math.inf
        self._interrupt = interrupt
        self._process = process
        self._under_way: set[Work] = set()

    def give_up_at(self) -> float:
        """When the last drain with a time limit gives up."""
        return self._ends_at

    def limit(self, ends_at: float) -> None:
        """Let what is retried beside loops end at this time."""
        self._ends_at = ends_at

    def is_stopped(self) -> bool:
        """Return whether to take no new work, because of a drain or of the user's stop signal."""
        return self.is_shut or (self._interrupt is not None and self._interrupt.is_interrupted())

    def enter(self) -> Entry:
        """Begin something that a drain waits for. Enter first, then check the gate: so no drain overlooks it."""
        token = (self._process(), object())
        self._under_way.add(token)
        return token, _around.set((*_around.get(), token))

    def add(self) -> Work:
        """Begin something that a drain waits for, and that another thread or task may end with `discard`."""
        token = (self._process(), object())
        self._under_way.add(token)
        return token

    def discard(self, work: Work) -> None:
        self._under_way.discard(work)

    def leave(self, entry: Entry) -> None:
        token, outside = entry
        self._under_way.discard(token)
        _around.reset(outside)

    def rest(self, entry: Entry, resting: bool) -> None:
        """Note that an operation only waits: it holds nothing, and a drain need not wait for it."""
        (self._under_way.discard if resting else self._under_way.add)(entry[0])

    def refuse_if_shut(self) -> None:
        if self.is_shut:
            error = QueueDrainedError("queue is drained")
            error.add_note("Nothing was published. A drained queue object stays drained: make another one.")
            raise error

    def others_are_under_way(self) -> bool:
        """Return whether operations outside of this call are under way."""
        # What a fork has brought along ends in the parent, and never here.
        here = self._process()
        return any(process == here for process, _ in self._under_way.difference(_around.get()))

    def we_are_under_way(self) -> bool:
        """Return whether this call was made from inside an operation, by a signal handler or a callback."""
        return bool(self._under_way.intersection(_around.get()))


async def drain(queue: QueueProtocol, timeout: float | None) -> bool:
    """Refuse new work and end the old. Whether nothing is under way or unconfirmed any more."""
    gate, port, claimer = queue.gate, queue.port, queue.store.claimer
    gate.is_shut = True
    deadline = None if timeout is None else port.now() + timeout
    if timeout:  # a drain that does not wait only stops the consumers, and they end in their own time
        gate.limit(port.now() + timeout)
    while deadline is None or port.now() < deadline:
        if claimer.unconfirmed and not gate.we_are_under_way():
            if not await _requeue_all(queue, deadline):
                break
        elif gate.others_are_under_way():
            await port.sleep(_LOOK_AGAIN_SECONDS)
        else:
            break
    return not (claimer.unconfirmed or gate.others_are_under_way() or gate.we_are_under_way())


async def _requeue_all(queue: QueueProtocol, deadline: float | None) -> bool:
    """Requeue what the unconfirmed claims took, in all partitions at once. Whether all of them have answered."""
    parts = [part.store for part in queue.parts if part.store.claimer.unconfirmed]
    answers: list[bool] = []
    troubles: list[Exception] = []

    async def requeue(store: Store, pause: Pause | None = None) -> None:
        try:
            while store.claimer.unconfirmed and (deadline is None or queue.port.now() < deadline):
                if not await _requeue_one(queue, store, deadline):
                    answers.append(False)
                    return
        except Exception as error:
            troubles.append(error)

    beside = [queue.port.spawn(partial(requeue, store)) for store in parts[1:]]
    try:
        for store in parts[:1]:
            await requeue(store)
        for task in beside:
            await task.end()
    except BaseException:
        for task in beside:
            task.abandon()
        raise
    if troubles:
        raise troubles[0]
    return all(answers)


async def _requeue_one(queue: QueueProtocol, store: Store, deadline: float | None) -> bool:
    """Recover one unconfirmed claim and requeue its messages, as if nothing had happened; False at the deadline."""
    claimer, settler = store.claimer, store.settler
    claimant = Claimant(queue.options.name)  # a drain is itself the stop, and has no events for its requests
    entry = queue.gate.enter()
    try:
        recovered = await claimer.recover(claimant, deadline)
        if recovered is None:
            await queue.port.sleep(_LOOK_AGAIN_SECONDS)  # somebody else recovers it
            return True
        attempt, result = recovered
        try:
            if result.unconfirmed:  # the time of this drain is over
                return False
            if result.claims:
                for claim in result.claims:
                    await queue.emitter.emit(EventOperation.CLAIM_RECLAIM, claim=claim)
                left = None if deadline is None else max(0.0, deadline - queue.port.now())
                with AttemptEnd(deadline):
                    await settler.requeue(result.claims, forgiven=True, budget=left)
                attempt.apply("settle")
        finally:
            claimer.release(attempt, claimant)
    except Exception as error:
        if isinstance(error, RetryBudgetExhaustedError) or queue.port.is_transient(error):
            return False
        raise
    finally:
        claimer.leave_to_others(claimant)
        queue.gate.leave(entry)
    return True
