"""Repid with its Redis broker, which uses streams: `send_message_json` and `run_worker`."""

import asyncio
from typing import Any

from repid import RedisServer, Repid, Router

from bench.league.handler import handle_async
from bench.league.settings import CONCURRENCY, LEASE_SECONDS, QUEUE, URL

_LEASE: dict[str, Any] = {"min_idle_ms": LEASE_SECONDS * 1000, "claim_interval": 1.0} if LEASE_SECONDS else {}
app = Repid(title="league", version="1.0.0")
app.servers.register_server("default", RedisServer(URL, **_LEASE), is_default=True)
router = Router()


@router.actor(channel=QUEUE)
async def task(message: dict[str, Any]) -> None:
    await handle_async(message)


app.include_router(router)


class Producer:
    async def open(self) -> None:
        await app.servers.default.connect()

    async def publish(self, message: dict[str, Any]) -> None:
        await app.send_message_json(channel=QUEUE, payload={"message": message}, headers={"topic": "task"})


async def _work() -> None:
    async with app.servers.default.connection():
        await (app.run_worker(tasks_limit=CONCURRENCY) if CONCURRENCY else app.run_worker())


def work() -> None:
    asyncio.run(_work())
