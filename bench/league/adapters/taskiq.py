"""Taskiq with the stream broker of taskiq-redis, which acknowledges."""

from typing import Any

from taskiq_redis import RedisStreamBroker

from bench.league.handler import handle_async
from bench.league.settings import LEASE_SECONDS, URL

_LEASE = {"idle_timeout": LEASE_SECONDS * 1000, "unacknowledged_lock_timeout": LEASE_SECONDS} if LEASE_SECONDS else {}
broker = RedisStreamBroker(URL, **_LEASE)


@broker.task(task_name="task")
async def task(message: dict[str, Any]) -> None:
    await handle_async(message)


class Producer:
    async def open(self) -> None:
        await broker.startup()

    async def publish(self, message: dict[str, Any]) -> None:
        await task.kiq(message)
