"""Serves several queues in one event loop, with as many messages of each as its weight says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis_message_queue.asyncio.message_queue import RedisMessageQueue
from redis_message_queue.asyncio.run_loop import Loop, wrapped
from redis_message_queue.process.loop_signals import stopped_by_signals
from redis_message_queue.protocol.loop.prefetcher import Prefetcher, WorkItem
from redis_message_queue.protocol.loop.run_options import Middleware, RunOptions, RunSummary
from redis_message_queue.protocol.loop.turns import (
    PATIENCE_SECONDS,
    Member,
    Rounds,
    Share,
    WeightedTurns,
    checked_shares,
)
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.values.checks import suggests_options
from redis_message_queue.values.errors import RetryBudgetExhaustedError

_LOOK_SECONDS = 0.1  # how often a worker that waits for a place looks whether its loop is stopped


@suggests_options
async def run_queues(
    queues: Mapping[RedisMessageQueue, Any],
    handler: Callable[[Any], Any] | None = None,
    *,
    concurrency: int = 1,
    prefetch: int = 1,
    batch_size: int | None = None,
    batch_seconds: float | None = None,
    until_empty: bool = False,
    wait_for_retries: bool = False,
    middleware: Sequence[Middleware] = (),
    renew_leases: bool = True,
    signals: bool = True,
) -> list[RunSummary]:
    """Call handlers with messages of several queues, until you stop it as you stop `RedisMessageQueue.run`.

    Pass one handler for all queues, as in ``run_queues({urgent: 3, bulk: 1}, handle)``, or a handler for each, as in
    ``run_queues({orders: charge, mails: (send, 3)})``.

    As long as several queues have messages, each gets handlers in proportion to its weight. A queue without messages
    leaves its share to the others. A message is claimed when its handler can start, or up to ``prefetch`` ahead. The
    loop ends when all queues are stopped, or with the first error of one of them. A queue whose Redis cannot be reached
    does not stop the others: it is logged and tried again, and ends the loop when no other queue is served.

    Args:
        queues: Each queue and its weight, a whole number from 1 to 1,000; or its handler, whose weight is 1; or a tuple
            of its handler and its weight. ``message.queue`` tells a handler the name.
        handler: As in `RedisMessageQueue.run`; left out if ``queues`` has a handler for each.
        concurrency: How many handlers run at the same time, of all queues together.
        prefetch: How many messages of one queue to claim in one round trip.
        batch_size: Call the handler with a list of up to this many messages, all of one queue.
        batch_seconds: How long to wait until a batch is full. Meanwhile the batch counts as being handled.
        until_empty: Return when no message is waiting in any of the queues.
        wait_for_retries: With ``until_empty``, also wait for the next attempts of messages that this loop retries.
        middleware: As in `RedisMessageQueue.run`.
        renew_leases: As in `RedisMessageQueue.run`.
        signals: As in `RedisMessageQueue.run`, unless one of the queues has an ``interrupt``.

    Returns:
        list[RunSummary]: What was done with the messages of each queue, in the order of ``queues``.

    Raises:
        ConfigurationError: An argument cannot be used.
        RetryBudgetExhaustedError: Redis could not be reached in time, for any of the queues that are left.
    """
    shares = checked_shares(queues, handler, RedisMessageQueue)
    run = QueuesRun(
        {queue: Share(wrapped(share.handler, middleware), share.weight) for queue, share in shares.items()},
        concurrency=concurrency,
        prefetch=prefetch,
        batch_size=batch_size,
        batch_seconds=batch_seconds,
        until_empty=until_empty,
        wait_for_retries=wait_for_retries,
        renew_leases=renew_leases,
        signals=signals,
    )
    has_interrupt = any(queue._protocol.options.interrupt is not None for queue in shares)
    with stopped_by_signals(run.stop, wanted=signals and not has_interrupt):
        return await run.run()


class QueuesRun:
    """The loops of several queues, and what they have done so far; one queue needs no places."""

    def __init__(self, shares: Mapping[RedisMessageQueue, Share], **options: Any) -> None:
        self._shares = [
            (queue._protocol, RunOptions(handler=share.handler, **options), share.weight)
            for queue, share in shares.items()
        ]
        self._options = self._shares[0][1]
        self._rounds = Rounds(len(shares))
        self.summaries, self.stop = self._rounds.summaries, self._rounds.stop

    async def run(self) -> list[RunSummary]:
        """Run until all queues are stopped, or empty if that is wanted."""
        if len(self._shares) == 1:
            loop = Loop(*self._shares[0][:2])
            self._rounds.begin([loop])
            await loop.run()
            self._rounds.end()
            return self.summaries()
        while await self._run_once() and self._options.until_empty:
            pass
        return self.summaries()

    async def _run_once(self) -> bool:
        places = _Places(self._options.concurrency)
        loops = [SharedLoop(protocol, options, places, weight) for protocol, options, weight in self._shares]
        self._rounds.begin(loops)
        await _run_beside_each_other(loops)
        return self._rounds.end()


async def _run_beside_each_other(loops: Sequence[SharedLoop]) -> None:
    """Run until all have ended, or one has failed."""
    tasks = [asyncio.create_task(loop.run(), name="redis-message-queue-loop") for loop in loops]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    finally:
        for loop in loops:
            loop.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.result()


class _Places:
    """Where the workers of all loops wait until a handler may start."""

    def __init__(self, places: int) -> None:
        self._turns = WeightedTurns(places)
        self._changed = asyncio.Event()
        self.join, self.start = self._turns.join, self._turns.start
        self.go_on_without = self._turns.go_on_without

    async def wait(self, member: Member, prefetcher: Prefetcher) -> bool:
        """Wait for a place. Returns False if the loop is stopped."""
        if self.start(member):
            return True
        await prefetcher.acks.flush()  # they should not wait for a handler of another queue
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.start(member, whoever_waits=time.monotonic() >= deadline):
            if prefetcher.is_stopped:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()
            if not self._turns.has_room:
                deadline = time.monotonic() + PATIENCE_SECONDS
        return True

    def rest(self, member: Member) -> None:
        self._turns.rest(member)
        self._notify()

    def done(self, member: Member) -> None:
        self._turns.done(member)
        self._notify()

    def leave(self, member: Member) -> None:
        self._turns.leave(member)
        self._notify()

    def _notify(self) -> None:
        """Wake all that wait now."""
        self._changed.set()
        self._changed = asyncio.Event()


class SharedLoop(Loop):
    """A loop that needs a place before each claim, and shares the places with the loops of other queues."""

    def __init__(self, protocol: QueueProtocol, options: RunOptions[Any], places: _Places, weight: int) -> None:
        super().__init__(protocol, options)
        self._places = places
        self._name = protocol.options.name
        self._member = places.join(weight, options.concurrency, protocol.store.claimer.is_silent)

    async def run(self) -> RunSummary:
        try:
            return await super().run()
        finally:
            self._places.leave(self._member)

    async def _work(self) -> None:
        prefetcher = self._prefetcher
        while item := await self._next_shared():
            try:
                await self._handle(item)
            finally:
                self._places.done(self._member)
            if prefetcher.acks.is_late:
                await prefetcher.acks.flush()

    async def _next_shared(self) -> WorkItem | None:
        while not self._prefetcher.is_stopped:
            await self._acquire_turn()
            try:
                item, is_over = await self._take()
            except RetryBudgetExhaustedError as error:
                if not self._places.go_on_without(self._member, self._name, error):
                    raise
                continue
            finally:
                self._turn.release()
            if item is not None or is_over:
                return item
        return None

    async def _take(self) -> tuple[WorkItem | None, bool]:
        """Return an item that has a place, or None and whether the loop is over."""
        places, prefetcher = self._places, self._prefetcher
        if not await places.wait(self._member, prefetcher):
            return None, True
        item = None
        try:
            item = prefetcher.ready() or await prefetcher.next_item(waits=False)
        finally:
            if item is None:
                places.rest(self._member)
        if item is not None:
            return item, False
        if (item := await prefetcher.next_item()) is None:  # waits without a place
            return None, True
        if places.start(self._member):
            return item, False
        await prefetcher.put_back(item)  # all handlers are busy with other queues: another process may have time
        return None, False
