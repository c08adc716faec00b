"""streaQ: `task.enqueue`, `Worker.enqueue_many` and `streaq run`."""

from contextlib import AsyncExitStack
from typing import Any

from streaq import Worker

from bench.league.handler import handle_async
from bench.league.settings import CONCURRENCY, LEASE_SECONDS, URL

_LEASE = {"idle_timeout": LEASE_SECONDS} if LEASE_SECONDS else {}
_CROWD = {"concurrency": CONCURRENCY} if CONCURRENCY else {}
worker = Worker(redis_url=URL, **_LEASE, **_CROWD)


@worker.task(max_tries=10)
async def task(message: dict[str, Any]) -> None:
    await handle_async(message)


class Producer:
    async def open(self) -> None:
        await AsyncExitStack().enter_async_context(worker)

    async def publish(self, message: dict[str, Any]) -> None:
        await task.enqueue(message)

    async def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        await worker.enqueue_many([task.enqueue(message) for message in messages])
