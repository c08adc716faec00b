"""A queue library behind the public API that this one and the peer share."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from bench.payload import identity

# A pile is held for as long as the run lasts: its leases must not expire meanwhile.
_PILE_LEASE_SECONDS = 7200


class SyncQueue:
    """Two queue objects on the same keys, one of them with deduplication."""

    def __init__(self, url: str, name: str) -> None:
        client = redis.Redis.from_url(url)
        make = redis_message_queue.RedisMessageQueue
        self._queue = make(name, client=client, deduplication=False)
        self._once = make(name, client=client, deduplication=True, get_deduplication_key=identity)

    def publish(self, message: str) -> None:
        self._queue.publish(message)

    def publish_once(self, message: str) -> None:
        self._once.publish(message)

    def consume(self, _: str) -> None:
        with self._queue.process_message() as message:
            if message is None:
                raise RuntimeError("the pre-filled queue ran empty")

    def listen(self, handle: Callable[[str | bytes], None]) -> None:
        while True:
            with self._queue.process_message() as message:
                if message is not None:
                    return handle(message)


class AsyncQueue:
    """The same through the asyncio package."""

    def __init__(self, url: str, name: str) -> None:
        client = redis.asyncio.Redis.from_url(url)
        make = redis_message_queue.asyncio.RedisMessageQueue
        self._queue = make(name, client=client, deduplication=False)
        self._once = make(name, client=client, deduplication=True, get_deduplication_key=identity)

    async def publish(self, message: str) -> None:
        await self._queue.publish(message)

    async def publish_once(self, message: str) -> None:
        await self._once.publish(message)

    async def consume(self, _: str) -> None:
        async with self._queue.process_message() as message:
            if message is None:
                raise RuntimeError("the pre-filled queue ran empty")

    async def listen(self, handle: Callable[[str | bytes], None]) -> None:
        while True:
            async with self._queue.process_message() as message:
                if message is not None:
                    return handle(message)


class Pile:
    """Messages in flight: each claimed by a context of its own, so that any of them can be left first."""

    def __init__(self, url: str, name: str) -> None:
        self._queue = redis_message_queue.RedisMessageQueue(
            name,
            client=redis.Redis.from_url(url),
            deduplication=False,
            visibility_timeout_seconds=_PILE_LEASE_SECONDS,
        )
        self._held: list[AbstractContextManager[str | bytes | None]] = []

    def publish(self, message: str) -> None:
        self._queue.publish(message)

    def claim(self) -> None:
        context = self._queue.process_message()
        if context.__enter__() is None:
            raise RuntimeError("the pre-filled queue ran empty")
        self._held.append(context)

    def take_oldest(self, how_many: int) -> list[AbstractContextManager[str | bytes | None]]:
        oldest, self._held = self._held[:how_many], self._held[how_many:]
        return oldest
