"""This library: `publish`, `publish_many` and `run`."""

from typing import Any

from redis import Redis

from bench import library
from bench.league.handler import handle
from bench.league.settings import BATCH, LEASE_SECONDS, QUEUE, URL
from redis_message_queue import RedisMessageQueue


def Producer() -> library.SyncQueue:
    return library.SyncQueue(URL, QUEUE)


def work() -> None:
    lease: Any = {"visibility_timeout_seconds": LEASE_SECONDS} if LEASE_SECONDS else {}
    queue = RedisMessageQueue(QUEUE, client=Redis.from_url(URL), **lease)
    queue.run(lambda message: handle(message.json()), prefetch=BATCH)
