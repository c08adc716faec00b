"""SAQ: `Queue.enqueue` and the `saq` worker."""

from typing import Any

from saq import Queue

from bench.league.handler import handle_async
from bench.league.settings import CONCURRENCY, LEASE_SECONDS, URL

queue = Queue.from_url(URL)


async def task(context: dict[str, Any], *, message: dict[str, Any]) -> None:
    await handle_async(message)


settings = {"queue": queue, "functions": [task]}
if CONCURRENCY:
    settings["concurrency"] = CONCURRENCY
if LEASE_SECONDS:
    settings["timers"] = {"sweep": 1}


class Producer:
    def __init__(self) -> None:
        self._options = {"timeout": LEASE_SECONDS, "retries": 10} if LEASE_SECONDS else {}

    async def open(self) -> None:
        await queue.connect()

    async def publish(self, message: dict[str, Any]) -> None:
        await queue.enqueue("task", message=message, **self._options)

    async def publish_once(self, message: dict[str, Any]) -> None:
        await queue.enqueue("task", message=message, key=str(message["id"]))
