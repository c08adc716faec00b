"""A worker to be killed: it runs the loop, which publishes the ticks of schedules, and counts what it handles.

Arguments: the server's port, and "sync" or "asyncio".
"""

import asyncio
import os
import signal
import sys
from typing import Any

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue import GracefulInterruptHandler

OPTIONS: dict[str, Any] = {"visibility_timeout_seconds": 1, "max_delivery_count": None}


def run_sync(port: int, tally: redis.Redis, stopped: GracefulInterruptHandler) -> None:
    with redis.Redis(host="127.0.0.1", port=port) as client:
        queue = redis_message_queue.RedisMessageQueue("ticks", client=client, interrupt=stopped, **OPTIONS)
        queue.run(lambda message: note(tally, message), concurrency=2)


async def run_asyncio(port: int, tally: redis.Redis, stopped: GracefulInterruptHandler) -> None:
    async def handle(message: Any) -> None:
        note(tally, message)

    async with redis.asyncio.Redis(host="127.0.0.1", port=port) as client:
        queue = redis_message_queue.asyncio.RedisMessageQueue("ticks", client=client, interrupt=stopped, **OPTIONS)
        await queue.run(handle, concurrency=2)


def note(tally: redis.Redis, message: Any) -> None:
    """Which message was handled for which tick; the same message may be handled twice."""
    headers = message.headers
    tally.hset("handled", f"{headers['schedule']} {headers['scheduled_for']} {message.id}", message.attempt)


if __name__ == "__main__":
    signal.alarm(110)
    port = int(sys.argv[1])
    stopped = GracefulInterruptHandler([signal.SIGTERM])
    tally = redis.Redis(host="127.0.0.1", port=port)
    tally.sadd("ready", os.getpid())
    if sys.argv[2] == "sync":
        run_sync(port, tally, stopped)
    else:
        asyncio.run(run_asyncio(port, tally, stopped))
