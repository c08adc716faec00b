"""FastStream on Redis lists: `broker.publish` and `faststream run`. A popped message is gone if its worker dies."""

from typing import Any

from faststream import FastStream
from faststream.redis import RedisBroker

from bench.league.handler import handle_async
from bench.league.settings import CONCURRENCY, QUEUE, URL

broker = RedisBroker(URL)
app = FastStream(broker)


@broker.subscriber(list=QUEUE, max_workers=CONCURRENCY or 1)
async def task(message: dict[str, Any]) -> None:
    await handle_async(message)


class Producer:
    async def open(self) -> None:
        await broker.connect()

    async def publish(self, message: dict[str, Any]) -> None:
        await broker.publish(message, list=QUEUE)

    async def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        await broker.publish_batch(*messages, list=QUEUE)
