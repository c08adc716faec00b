"""Queues with dead letters, and a view of everything in Redis."""

import contextlib
from typing import Any

from tests.contract.shells import (
    Awaited,
    Died,
    Shell,
    take,
)

SOURCES = ["pending", "processing", "delayed", "completed", "failed", "dead_letters"]

LISTS = ["completed", "failed", "dead_letters"]


def key_of(queue: Any, source: str) -> str:
    return str(queue.key.dead_letter if source == "dead_letters" else getattr(queue.key, source))


def records_key(queue: Any, source: str) -> str:
    return str(queue.key.records("dlq" if source == "dead_letters" else source))


def mortal(shell: Shell, **options: Any) -> Any:
    """A queue whose messages die of one crash."""
    return shell.queue(**{"wait": 0, "max_delivery_count": 1} | options)


async def make_dead_letters(shell: Shell, queue: Any, *texts: str, tenant: str | None = None) -> None:
    """Make dead letters of these, the first one first."""
    await queue.publish_many(texts, tenant=tenant)
    left = len(texts)
    while left:
        with contextlib.suppress(Died):
            async with queue.process_messages(1_000) as batch:
                left -= len(batch)
                raise Died
    shell.lapse(queue)
    assert await take(queue) is None


def snapshot(shell: Shell) -> dict[bytes, bytes]:
    """Everything that is in Redis, as it is."""
    return {key: shell.redis.dump(key) for key in shell.redis.keys("*")}


async def payloads(queue: Any, source: str, count: int = 100) -> list[Any]:
    return [one.payload for one in await Awaited(queue).peek(count, source=source)]
