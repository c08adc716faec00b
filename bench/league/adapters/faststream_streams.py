"""FastStream on a Redis stream with a consumer group, which acknowledges: `broker.publish` and `faststream run`."""

from typing import Any

from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

from bench.league.handler import handle_async
from bench.league.settings import CONCURRENCY, QUEUE, URL

broker = RedisBroker(URL)
app = FastStream(broker)


@broker.subscriber(stream=StreamSub(QUEUE, group="group", consumer="worker"), max_workers=CONCURRENCY or 1)
async def task(message: dict[str, Any]) -> None:
    await handle_async(message)


class Producer:
    async def open(self) -> None:
        await broker.connect()

    async def publish(self, message: dict[str, Any]) -> None:
        await broker.publish(message, stream=QUEUE)
