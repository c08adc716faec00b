"""The consumer loop that most people write by hand, in one task or in several."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from redis_message_queue.protocol.feed import TURN_SECONDS, Feed, RunOptions, RunSummary, Unit
from redis_message_queue.protocol.queue import QueueProtocol


class Loop:
    """Workers around one feed: one at a time takes messages from it, all of them work."""

    def __init__(self, protocol: QueueProtocol, options: RunOptions[Any]) -> None:
        self._options = options
        self._feed = Feed(protocol, options)
        self._turn = asyncio.Lock()

    async def run(self) -> RunSummary:
        self._feed.open()
        try:
            if self._options.concurrency == 1:
                await self._work()
            else:
                await self._work_together()
        finally:
            await self._feed.close()
        return self._feed.summary

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
            self._feed.ended = True
            await asyncio.gather(*workers, return_exceptions=True)
        for worker in workers:
            worker.result()

    async def _work_beside(self) -> None:
        try:
            await self._work()
        except BaseException:  # also a handler that was cancelled from inside
            self._feed.ended = True
            raise

    async def _work(self) -> None:
        feed = self._feed
        while (unit := feed.ready() or await self._next_unit()) is not None:
            await self._handle(unit)
            if feed.is_late:
                await feed.flush()

    async def _next_unit(self) -> Unit | None:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            await self._feed.flush()
            await self._turn.acquire()
        try:
            return await self._feed.next_unit()
        finally:
            self._turn.release()

    async def _handle(self, unit: Unit) -> None:
        single = self._options.batch_size is None
        try:
            unit.begun = True
            result = self._options.handler(unit.messages[0] if single else list(unit.messages))
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            await self._feed.failed(unit, error)
        except BaseException:
            self._feed.leave_alone(unit)
            raise
        else:
            self._feed.done(unit)
