"""Arq: `enqueue_job` and the `arq` worker."""

from typing import Any

from arq import create_pool
from arq.connections import RedisSettings

from bench.league.handler import handle_async
from bench.league.settings import CONCURRENCY, LEASE_SECONDS, URL

_SETTINGS = RedisSettings.from_dsn(URL)


async def task(context: dict[str, Any], message: dict[str, Any]) -> None:
    await handle_async(message)


class WorkerSettings:
    functions = (task,)
    redis_settings = _SETTINGS
    max_jobs = CONCURRENCY or 10  # its default
    if LEASE_SECONDS:
        job_timeout = LEASE_SECONDS


class Producer:
    async def open(self) -> None:
        self._redis = await create_pool(_SETTINGS)

    async def publish(self, message: dict[str, Any]) -> None:
        await self._redis.enqueue_job("task", message)

    async def publish_once(self, message: dict[str, Any]) -> None:
        await self._redis.enqueue_job("task", message, _job_id=str(message["id"]))
