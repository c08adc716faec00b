"""The queue library as a contender, through the public API that this one and the peer share."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from bench.payload import identity

# Messages are held until the run ends: their leases must not expire before that.
_LEASE_SECONDS = 7200


_TENANTS = 10


def _ignore(_: object) -> None:
    """A handler that costs nothing."""


class Checks:
    """The part that the sync and the async queue share."""

    _turn = 0

    def _check(self, summary: Any, messages: list[dict[str, Any]]) -> None:
        if summary.handled != len(messages):
            raise RuntimeError(f"{summary.handled} of {len(messages)} messages were handled")


class SyncQueue(Checks):
    """Two queue objects on the same keys, one of them with deduplication."""

    def __init__(self, url: str, name: str) -> None:
        client = redis.Redis.from_url(url)
        make = redis_message_queue.RedisMessageQueue
        self._queue = make(name, client=client, deduplication=False)
        self._once = make(name, client=client, deduplication=True, get_deduplication_key=identity)

    def publish(self, message: dict[str, Any]) -> None:
        self._queue.publish(message)

    def publish_later(self, message: dict[str, Any], seconds: float) -> None:
        self._queue.publish(message, delay_seconds=seconds)

    def publish_once(self, message: dict[str, Any]) -> None:
        self._once.publish(message)

    def consume(self, _: dict[str, Any]) -> None:
        with self._queue.process_message() as message:
            if message is None:
                raise RuntimeError("the pre-filled queue ran empty")

    def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        self._queue.publish_many(messages)

    def consume_batch(self, messages: list[dict[str, Any]]) -> None:
        with self._queue.process_messages(len(messages)) as batch:
            if len(batch) < len(messages):
                raise RuntimeError("the pre-filled queue ran empty")

    def run_1(self, messages: list[dict[str, Any]]) -> None:
        self._check(self._queue.run(_ignore, prefetch=1, until_empty=True), messages)

    def run_100(self, messages: list[dict[str, Any]]) -> None:
        self._check(self._queue.run(_ignore, prefetch=100, until_empty=True), messages)

    def publish_for_tenants(self, message: dict[str, Any]) -> None:
        self._turn = (self._turn + 1) % _TENANTS
        self._queue.publish(message, tenant=f"tenant {self._turn}")

    def consume_of_tenants(self, message: dict[str, Any]) -> None:
        self.consume(message)

    def listen(self, handle: Callable[[str | bytes], None]) -> None:
        while True:
            with self._queue.process_message() as message:
                if message is not None:
                    return handle(message)


class AsyncQueue(Checks):
    """The same through the asyncio package."""

    def __init__(self, url: str, name: str) -> None:
        client = redis.asyncio.Redis.from_url(url)
        make = redis_message_queue.asyncio.RedisMessageQueue
        self._queue = make(name, client=client, deduplication=False)
        self._once = make(name, client=client, deduplication=True, get_deduplication_key=identity)

    async def publish(self, message: dict[str, Any]) -> None:
        await self._queue.publish(message)

    async def publish_later(self, message: dict[str, Any], seconds: float) -> None:
        await self._queue.publish(message, delay_seconds=seconds)

    async def publish_once(self, message: dict[str, Any]) -> None:
        await self._once.publish(message)

    async def consume(self, _: dict[str, Any]) -> None:
        async with self._queue.process_message() as message:
            if message is None:
                raise RuntimeError("the pre-filled queue ran empty")

    async def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        await self._queue.publish_many(messages)

    async def consume_batch(self, messages: list[dict[str, Any]]) -> None:
        async with self._queue.process_messages(len(messages)) as batch:
            if len(batch) < len(messages):
                raise RuntimeError("the pre-filled queue ran empty")

    async def run_1(self, messages: list[dict[str, Any]]) -> None:
        self._check(await self._queue.run(_ignore, prefetch=1, until_empty=True), messages)

    async def run_100(self, messages: list[dict[str, Any]]) -> None:
        self._check(await self._queue.run(_ignore, prefetch=100, until_empty=True), messages)

    async def publish_for_tenants(self, message: dict[str, Any]) -> None:
        self._turn = (self._turn + 1) % _TENANTS
        await self._queue.publish(message, tenant=f"tenant {self._turn}")

    async def consume_of_tenants(self, message: dict[str, Any]) -> None:
        await self.consume(message)

    async def listen(self, handle: Callable[[str | bytes], None]) -> None:
        while True:
            async with self._queue.process_message() as message:
                if message is not None:
                    return handle(message)


class InFlight:
    """Messages in flight, each claimed in its own context, so that they can be acknowledged in any order."""

    def __init__(self, url: str, name: str) -> None:
        self._queue = redis_message_queue.RedisMessageQueue(
            name,
            client=redis.Redis.from_url(url),
            deduplication=False,
            visibility_timeout_seconds=_LEASE_SECONDS,
        )
        self._held: list[AbstractContextManager[str | bytes | None]] = []

    def publish(self, message: dict[str, Any]) -> None:
        self._queue.publish(message)

    def claim(self) -> None:
        context = self._queue.process_message()
        if context.__enter__() is None:
            raise RuntimeError("the pre-filled queue ran empty")
        self._held.append(context)

    def take_oldest(self, how_many: int) -> list[AbstractContextManager[str | bytes | None]]:
        oldest, self._held = self._held[:how_many], self._held[how_many:]
        return oldest
