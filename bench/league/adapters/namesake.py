"""The package `redis-message-queue` of PyPI, with the loop of its documentation."""

import json
from typing import Any

from redis import Redis

from bench import library
from bench.league.handler import handle
from bench.league.settings import LEASE_SECONDS, QUEUE, URL
from redis_message_queue import RedisMessageQueue

NEEDS_THREADS = True


class Producer:
    """It has no batches."""

    def __init__(self) -> None:
        self._queue = library.SyncQueue(URL, QUEUE)

    def publish(self, message: dict[str, Any]) -> None:
        self._queue.publish(message)

    def publish_once(self, message: dict[str, Any]) -> None:
        self._queue.publish_once(message)


def work() -> None:
    lease: Any = {"visibility_timeout_seconds": LEASE_SECONDS} if LEASE_SECONDS else {}
    queue = RedisMessageQueue(QUEUE, client=Redis.from_url(URL), deduplication=False, **lease)
    while True:
        with queue.process_message() as message:
            if message is not None:
                handle(json.loads(message))
