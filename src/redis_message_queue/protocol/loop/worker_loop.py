"""The consumer loop that most people write by hand: workers around one prefetcher, in threads or in tasks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from signal import Signals
from typing import Any, NoReturn, Protocol

from redis_message_queue.protocol.loop.prefetcher import Prefetcher, WorkItem
from redis_message_queue.protocol.loop.run_options import RunOptions, RunSummary
from redis_message_queue.protocol.queue import QueueProtocol

LOOK_SECONDS = 0.1  # how often a thread that waits for others looks for signals, or whether its loop is stopped


class Workers(Protocol):
    """How a shell lets handlers run beside each other: in threads or in tasks."""

    @property
    def refuse_awaitable(self) -> Callable[[Any], NoReturn] | None:
        """What raises for a handler that only the other shell can await."""

    def run_together(
        self, works: Sequence[Callable[[], Coroutine[Any, Any, Any]]], name: str, stop: Callable[[], None]
    ) -> Awaitable[None]:
        """Run until all have ended. If one fails or the caller is interrupted, ``stop()`` ends the others."""


class Loop:
    """Workers around one prefetcher: one at a time claims, all of them handle messages."""

    def __init__(self, protocol: QueueProtocol, options: RunOptions[Any], workers: Workers) -> None:
        self._options = options
        self._prefetcher = Prefetcher(protocol, options)
        self._workers = workers

    async def run(self) -> RunSummary:
        count = self._options.concurrency
        try:
            self._prefetcher.open()
            if count == 1:
                await self._work()
            else:
                stop = self._prefetcher.stop
                await self._workers.run_together([self._work] * count, "redis-message-queue-worker", stop)
        finally:
            try:
                await self._prefetcher.close()
            finally:  # whatever interrupts that, the background threads or tasks must end
                self._prefetcher.holding.end_lease()
        return self._prefetcher.summary

    @property
    def summary(self) -> RunSummary:
        """The messages that this loop has handled so far, by how they ended."""
        return self._prefetcher.live_summary()

    def stop(self, signal: Signals | None = None) -> None:
        """Start no new work; handlers that run finish."""
        self._prefetcher.stop(signal)

    async def _work(self) -> None:
        prefetcher = self._prefetcher
        while item := prefetcher.ready() or await prefetcher.next_item():
            await self._handle(item)
            if prefetcher.acks.is_late:
                await prefetcher.acks.flush()

    async def _handle(self, work_item: WorkItem) -> None:
        refuse_awaitable = self._workers.refuse_awaitable
        argument = work_item.messages[0] if self._options.batch_size is None else list(work_item.messages)
        try:
            work_item.begun = True  # the last step before the handler: up to here Ctrl-C leaves them to be requeued
            result = self._options.handler(argument)
            is_awaitable = result is not None and inspect.isawaitable(result)
            if is_awaitable and refuse_awaitable is None:
                await result
        except Exception as error:
            await self._prefetcher.failed(work_item, error)
            return
        except BaseException:
            self._prefetcher.leave_alone(work_item)
            raise
        if is_awaitable and refuse_awaitable is not None:
            self._prefetcher.leave_alone(work_item)
            refuse_awaitable(result)
        self._prefetcher.done(work_item)
