"""Dramatiq: `actor.send` and the `dramatiq` worker."""

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.league.handler import handle
from bench.league.settings import LEASE_SECONDS, URL

_LEASE = {"heartbeat_timeout": LEASE_SECONDS * 1000, "maintenance_chance": 200_000} if LEASE_SECONDS else {}
broker = RedisBroker(url=URL, **_LEASE)
dramatiq.set_broker(broker)


@dramatiq.actor
def task(message: dict[str, Any]) -> None:
    handle(message)


class Producer:
    def publish(self, message: dict[str, Any]) -> None:
        task.send(message)
