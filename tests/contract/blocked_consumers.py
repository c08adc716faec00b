"""Consumers that are blocked in Redis until something wakes them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redis_message_queue.protocol.consume import part_claimer
from tests.contract.shells import (
    LIMIT_SECONDS,
    Shell,
    take,
    until,
)


async def take_all(queue: Any, count: int) -> list[Any]:
    return [await take(queue) for _ in range(count)]


class BlockedConsumer:
    """A consumer that blocks until it is woken up: its slice is longer than any test waits."""

    SLICE_SECONDS = 3 * LIMIT_SECONDS

    def __init__(self, shell: Shell, name: str = "q", **options: Any) -> None:
        self._shell = shell
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(part_claimer, "_SLICE_SECONDS", self.SLICE_SECONDS)
            client = shell.new_client(socket_timeout=3 * self.SLICE_SECONDS)  # a shorter one would end the wait
            self.queue = shell.queue(name, client=client, **{"wait": self.SLICE_SECONDS} | options)
        assert self.queue.queue._protocol.store.claimer.slice_seconds == self.SLICE_SECONDS

    async def sleep(self, work: Callable[[Any], Coroutine[Any, Any, Any]] = take) -> None:
        """Start, and return when Redis has one more blocked client."""
        before = blocked_clients(self._shell)
        self._taking = asyncio.ensure_future(self._shell.beside(lambda: work(self.queue)))
        assert await until(lambda: blocked_clients(self._shell) == before + 1), "it does not block"

    @property
    def is_awake(self) -> bool:
        return self._taking.done()

    async def wakes(self) -> Any:
        """Wait until it is woken up, and return what it took."""
        done, _ = await asyncio.wait({self._taking}, timeout=LIMIT_SECONDS)
        if not done:
            self._shell.redis.lpush(self.queue.key.wakeup, "1")  # so that it ends with the test
            await asyncio.wait({self._taking}, timeout=LIMIT_SECONDS)
        assert done, "nothing woke it up"
        return self._taking.result()


async def blocked_consumer(shell: Shell, name: str = "q", **options: Any) -> BlockedConsumer:
    """A consumer that is blocked in Redis."""
    one = BlockedConsumer(shell, name, **options)
    await one.sleep()
    return one


def blocked_clients(shell: Shell) -> int:
    return int(shell.redis.info("clients")["blocked_clients"])
