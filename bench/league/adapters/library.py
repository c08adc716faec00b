"""This library: `publish`, `publish_many` and `run`."""

import asyncio
from typing import Any

import redis.asyncio
from redis import Redis

import redis_message_queue.asyncio
from bench import library
from bench.league.handler import handle, handle_async
from bench.league.settings import BATCH, CONCURRENCY, LEASE_SECONDS, QUEUE, URL
from redis_message_queue import RedisMessageQueue


def Producer() -> library.SyncQueue:
    return library.SyncQueue(URL, QUEUE)


def Crowd() -> library.AsyncQueue:
    return library.AsyncQueue(URL, QUEUE)


def work() -> None:
    lease: Any = {"visibility_timeout_seconds": LEASE_SECONDS} if LEASE_SECONDS else {}
    if CONCURRENCY:
        asyncio.run(_work_beside_each_other(lease))
        return
    queue = RedisMessageQueue(QUEUE, client=Redis.from_url(URL), **lease)
    queue.run(lambda message: handle(message.json()), prefetch=BATCH if BATCH > 1 else None)


async def _work_beside_each_other(lease: dict[str, Any]) -> None:
    queue = redis_message_queue.asyncio.RedisMessageQueue(QUEUE, client=redis.asyncio.Redis.from_url(URL), **lease)
    await queue.run(lambda message: handle_async(message.json()), concurrency=CONCURRENCY)
