"""BullMQ for Python: `Queue.add`, `Queue.addBulk` and a `Worker`."""

import asyncio
from typing import Any

from bullmq import Queue, Worker

from bench.league.handler import handle_async
from bench.league.settings import CONCURRENCY, LEASE_SECONDS, QUEUE, URL


class Producer:
    async def open(self) -> None:
        self._queue = Queue(QUEUE, {"connection": URL})

    async def publish(self, message: dict[str, Any]) -> None:
        await self._queue.add("task", message)

    async def publish_once(self, message: dict[str, Any]) -> None:
        await self._queue.add("task", message, {"jobId": str(message["id"])})

    async def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        await self._queue.addBulk([{"name": "task", "data": message, "opts": {}} for message in messages])


async def _process(job: Any, token: str) -> None:
    await handle_async(job.data)


async def _work() -> None:
    options: dict[str, Any] = {"connection": URL}
    if CONCURRENCY:
        options["concurrency"] = CONCURRENCY
    if LEASE_SECONDS:
        options |= {"lockDuration": LEASE_SECONDS * 1000, "stalledInterval": 1000, "maxStalledCount": 10}
    worker = Worker(QUEUE, _process, options)
    await asyncio.Event().wait()
    await worker.close()


def work() -> None:
    asyncio.run(_work())
