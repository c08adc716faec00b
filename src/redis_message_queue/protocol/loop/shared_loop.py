"""Runs handlers on several queues, with as many messages of each as its weight says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from redis_message_queue.protocol.loop.prefetcher import Prefetcher, WorkItem
from redis_message_queue.protocol.loop.run_options import RunOptions, RunSummary
from redis_message_queue.protocol.loop.turns import PATIENCE_SECONDS, Member, Rounds, Share, WeightedTurns
from redis_message_queue.protocol.loop.worker_loop import LOOK_SECONDS, Loop, Workers
from redis_message_queue.protocol.port import Notification, Runtime
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.values.errors import RetryBudgetExhaustedError


class Places:
    """Where the workers of all loops wait until a handler may start."""

    def __init__(self, places: int, runtime: Runtime) -> None:
        self._turns = WeightedTurns(places)
        self._runtime = runtime
        self._lock = runtime.lock()
        self._waiting: set[Notification] = set()

    def join(self, weight: int, workers: int, is_silent: Callable[[], bool]) -> Member:
        with self._lock:
            return self._turns.join(weight, workers, is_silent)

    def start(self, member: Member, *, whoever_waits: bool = False) -> bool:
        """Take a place if it is this loop's turn."""
        with self._lock:
            return self._turns.start(member, whoever_waits=whoever_waits)

    async def wait(self, member: Member, prefetcher: Prefetcher) -> bool:
        """Wait for a place. Returns False if the loop is stopped."""
        if self.start(member):
            return True
        await prefetcher.acks.flush()  # they should not wait for a handler of another queue
        now, notification = self._runtime.now, self._runtime.notification()
        deadline = now() + PATIENCE_SECONDS
        self._waiting.add(notification)
        try:
            while not self.start(member, whoever_waits=now() >= deadline):
                if prefetcher.is_stopped:
                    return False
                await notification.wait(LOOK_SECONDS)
                if not self._turns.has_room:
                    deadline = now() + PATIENCE_SECONDS
        finally:
            self._waiting.discard(notification)
        return True

    def hold(self, member: Member, most: int) -> int:
        with self._lock:
            return self._turns.hold(member, most)

    def use_held(self, member: Member) -> bool:
        with self._lock:
            return self._turns.use_held(member)

    def keep_held(self, member: Member, messages: int) -> None:
        self._change(self._turns.keep_held, member, messages)

    def give_back(self, member: Member) -> None:
        self._change(self._turns.give_back, member)

    def rest(self, member: Member) -> None:
        self._change(self._turns.rest, member)

    def done(self, member: Member) -> None:
        self._change(self._turns.done, member)

    def leave(self, member: Member) -> None:
        self._change(self._turns.leave, member)

    def _change(self, change: Callable[..., None], *arguments: Any) -> None:
        with self._lock:
            change(*arguments)
        for notification in tuple(self._waiting):
            notification.send()

    def go_on_without(self, member: Member, queue: str, error: Exception) -> bool:
        with self._lock:
            return self._turns.go_on_without(member, queue, error)


class SharedLoop(Loop):
    """A loop that needs a place before each claim, and shares the places with the loops of other queues."""

    def __init__(
        self, protocol: QueueProtocol, options: RunOptions[Any], workers: Workers, places: Places, weight: int
    ) -> None:
        super().__init__(protocol, options, workers)
        self._places = places
        self._name = protocol.options.name
        self._member = places.join(weight, options.concurrency, protocol.store.claimer.is_silent)

    async def run(self) -> RunSummary:
        try:
            return await super().run()
        finally:
            if not self._prefetcher.holding.is_forked:
                self._places.leave(self._member)

    async def _work(self) -> None:
        prefetcher = self._prefetcher
        while item := await self._next_shared():
            try:
                await self._handle(item)
            finally:
                if not prefetcher.holding.is_forked:
                    self._places.done(self._member)
            if prefetcher.acks.is_late:
                await prefetcher.acks.flush()

    async def _next_shared(self) -> WorkItem | None:
        places, prefetcher = self._places, self._prefetcher
        while not prefetcher.is_stopped:
            if places.use_held(self._member):
                if (item := prefetcher.ready()) is not None:
                    prefetcher.turn.pass_on(prefetcher.ready_count)
                    return item
                places.give_back(self._member)
            if not prefetcher.turn.begin():
                await prefetcher.wait_for_turn()
                continue
            try:
                item, is_over = await self._take()
            except RetryBudgetExhaustedError as error:
                if not places.go_on_without(self._member, self._name, error):
                    raise
                continue
            finally:
                prefetcher.end_turn()
            if item is not None or is_over:
                return item
        return None

    async def _take(self) -> tuple[WorkItem | None, bool]:
        """Return an item that has a place, or None and whether the loop is over."""
        places, prefetcher = self._places, self._prefetcher
        if not await places.wait(self._member, prefetcher):
            return None, True
        item, most = None, 1
        try:
            if prefetcher.claims_for_idle:
                most += places.hold(self._member, prefetcher.turn.idle_workers - 1)
            item = prefetcher.ready() or await prefetcher.find_item(waits=False, most=most)
        finally:
            places.keep_held(self._member, prefetcher.ready_count)
            if item is None:
                places.rest(self._member)
        if item is not None:
            return item, False
        if (item := await prefetcher.find_item(most=1)) is None:  # waits without a place
            return None, True
        if places.start(self._member):
            return item, False
        await prefetcher.put_back(item)  # all handlers are busy with other queues: another process may have time
        return None, False


class QueuesRun:
    """The loops of several queues, and what they have done so far; one queue needs no places."""

    def __init__(self, workers: Workers, shares: Mapping[Any, Share], **options: Any) -> None:
        self._workers = workers
        self._shares: list[tuple[QueueProtocol, RunOptions[Any], int]] = [
            (queue._protocol, RunOptions(handler=share.handler, **options), share.weight)
            for queue, share in shares.items()
        ]
        self._options = self._shares[0][1]
        self._rounds = Rounds(len(shares))
        self.summaries, self.stop = self._rounds.summaries, self._rounds.stop

    async def run(self) -> list[RunSummary]:
        """Run until all queues are stopped, or empty if that is wanted."""
        if len(self._shares) == 1:
            loop = Loop(*self._shares[0][:2], self._workers)
            self._rounds.begin([loop])
            await loop.run()
            self._rounds.end()
            return self.summaries()
        while await self._run_once() and self._options.until_empty:
            pass
        return self.summaries()

    async def _run_once(self) -> bool:
        places = Places(self._options.concurrency, self._shares[0][0].port)
        loops = [
            SharedLoop(protocol, options, self._workers, places, weight) for protocol, options, weight in self._shares
        ]
        self._rounds.begin(loops)

        def stop() -> None:
            for loop in loops:
                loop.stop()

        await self._workers.run_together([loop.run for loop in loops], "redis-message-queue-loop", stop)
        return self._rounds.end()
