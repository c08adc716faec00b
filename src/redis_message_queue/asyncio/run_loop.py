"""The consumer loop that most people write by hand, in one task or in several."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from signal import Signals
from typing import Any

from redis_message_queue.protocol.loop.prefetcher import TURN_SECONDS, Prefetcher, WorkItem
from redis_message_queue.protocol.loop.run_options import Middleware, RunOptions, RunSummary
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.values import checks


def wrapped(handler: Callable[[Any], Any], middleware: Sequence[Middleware]) -> Callable[[Any], Any]:
    """Return the handler inside of its middleware, the first of which is the outermost."""
    checks.required_function("handler", handler)
    for one in reversed(checks.functions("middleware", middleware)):
        handler = _around(one, _awaitable(handler))
    return handler


def _awaitable(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a function that can always be awaited: a handler need not be async."""

    async def called(*given: Any) -> Any:
        result = function(*given)
        return await result if inspect.isawaitable(result) else result

    return called


def _around(middleware: Middleware, call_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: middleware(given, call_next)


class Loop:
    """Workers around one prefetcher: one at a time claims, all of them handle messages."""

    def __init__(self, protocol: QueueProtocol, options: RunOptions[Any]) -> None:
        self._options = options
        self._prefetcher = Prefetcher(protocol, options)
        self._turn = asyncio.Lock()

    async def run(self) -> RunSummary:
        try:
            self._prefetcher.open()
            if self._options.concurrency == 1:
                await self._work()
            else:
                await self._work_together()
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

    async def _work_together(self) -> None:
        workers = [
            asyncio.create_task(self._work_beside(), name=f"redis-message-queue-worker-{number}")
            for number in range(1, self._options.concurrency + 1)
        ]
        try:
            await asyncio.wait(workers)
        except asyncio.CancelledError:
            for worker in workers:
                worker.cancel()
            raise
        finally:
            # The others finish what they have begun.
            self._prefetcher.stop()
            await asyncio.gather(*workers, return_exceptions=True)
        for worker in workers:
            worker.result()

    async def _work_beside(self) -> None:
        try:
            await self._work()
        except BaseException:  # also a handler that was cancelled from inside
            self._prefetcher.stop()
            raise

    async def _work(self) -> None:
        prefetcher, alone = self._prefetcher, self._options.concurrency == 1
        while item := prefetcher.ready() or await (prefetcher.next_item() if alone else self._next_in_turn()):
            await self._handle(item)
            if prefetcher.acks.is_late:
                await prefetcher.acks.flush()

    async def _next_in_turn(self) -> WorkItem | None:
        await self._acquire_turn()
        try:
            return await self._prefetcher.next_item()
        finally:
            self._turn.release()

    async def _acquire_turn(self) -> None:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            await self._prefetcher.acks.flush()
            await self._turn.acquire()

    async def _handle(self, work_item: WorkItem) -> None:
        single = self._options.batch_size is None
        try:
            work_item.begun = True
            result = self._options.handler(work_item.messages[0] if single else list(work_item.messages))
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            await self._prefetcher.failed(work_item, error)
        except BaseException:
            self._prefetcher.leave_alone(work_item)
            raise
        else:
            self._prefetcher.done(work_item)
