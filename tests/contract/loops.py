"""Queues for `run()`, and handlers that wait for each other."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from tests.contract.shells import (
    LIMIT_SECONDS,
    Shell,
    until,
)

LONG = 2 * LIMIT_SECONDS  # a wait that no test sits out, shorter than a lease of 300 s

side_by_side = pytest.mark.parametrize("concurrency", [1, 4])


def words(count: int) -> list[str]:
    return [f"{number:04}" for number in range(count)]


def text(message: Any) -> str:
    payload: str | bytes = message.payload
    return payload if isinstance(payload, str) else payload.decode()


def summary_of(summary: Any) -> tuple[int, int, int]:
    """How many were handled, how many failed for good, wherever they are now, and how many were requeued."""
    return summary.handled, summary.failed + summary.dead_lettered, summary.requeued


async def filled(shell: Shell, messages: Any = "abcd", **options: Any) -> Any:
    """A queue with these messages."""
    queue = shell.queue(**options)
    await queue.publish_many(list(messages))
    return queue


async def look(shell: Shell) -> list[tuple[str, int]]:
    """Payload and delivery count of everything that waits, as another consumer gets it."""
    seen: list[tuple[str, int]] = []
    async with shell.queue("q", client=shell.new_client()).process_messages(1_000, wait_seconds=0) as batch:
        seen += [(text(message), message.delivery_count) for message in batch]
    return seen


@contextlib.asynccontextmanager
async def running(shell: Shell, queue: Any, handler: Any, **options: Any) -> AsyncIterator[Any]:
    """A loop beside the block, which ends with it at the latest."""
    loop = asyncio.ensure_future(queue.run(handler, **options))
    try:
        yield loop
    finally:
        await queue.drain(timeout=0)
        with contextlib.suppress(redis.ConnectionError):
            shell.redis.lpush(
                queue.queue.partition(0).key.wakeup, "1"
            )  # so that no worker waits for the rest of its second
        await asyncio.wait({loop}, timeout=2 * LIMIT_SECONDS)
        assert loop.done(), "the loop does not end"


async def ended(loop: Any) -> Any:
    """What the loop came to, without anybody stopping it."""
    done, _ = await asyncio.wait({loop}, timeout=LIMIT_SECONDS)
    assert done, "the loop does not end"
    return loop.result()


class Crossing:
    """Handlers meet here: each comes in and waits until the crossing is opened."""

    def __init__(self, shell: Shell) -> None:
        self.inside: list[str] = []
        self.done: list[str] = []
        self.is_open = threading.Event()
        self.handler = shell.handler(self._wait)

    async def _wait(self, message: Any) -> None:
        self.inside.append(text(message))
        assert await until(self.is_open.is_set)
        self.done.append(text(message))

    async def is_entered_by(self, count: int) -> None:
        assert await until(lambda: len(self.inside) >= count), self.inside
