"""Huey: calling a task enqueues it; `huey_consumer` with one thread. A popped task is gone if its worker dies."""

from typing import Any

from huey import RedisHuey

from bench.league.handler import handle
from bench.league.settings import QUEUE, URL

huey = RedisHuey(QUEUE, url=URL)


@huey.task()
def task(message: dict[str, Any]) -> None:
    handle(message)


class Producer:
    def publish(self, message: dict[str, Any]) -> None:
        task(message)
