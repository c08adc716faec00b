"""The sync and the async library behind the same few methods, so that a worker is written once."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue.protocol.event_emitter import token_hash

# What a program that uses the library has to expect during an outage.
EXPECTED_ERRORS = (redis_message_queue.RedisMessageQueueError, redis.RedisError, OSError)


def lease_of(message: Any) -> str:
    """The hash of a message's fencing token: events have the same, so both sides of a delivery can be joined."""
    return token_hash(message._claim.lease_token)


class Shell:
    """A client of the server and what a worker does with the queues on it."""

    def __init__(self, url: str, place: str) -> None:
        self._url = url
        self._is_cluster = place == "cluster"
        self.client: Any = None

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError

    def queue(self, name: str, **options: Any) -> Any:
        raise NotImplementedError

    async def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function of the library: the sync one blocks, the async one is awaited."""
        result = function(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    def block(self, context: Any) -> Any:
        """A block of the library, as an async one."""
        raise NotImplementedError

    async def run(self, queue: Any, handler: Callable[[Any], Awaitable[None]], **options: Any) -> None:
        raise NotImplementedError


class SyncShell(Shell):
    """Blocks inside the one coroutine of its process."""

    async def __aenter__(self) -> Self:
        make = redis.RedisCluster.from_url if self._is_cluster else redis.Redis.from_url
        self.client = make(self._url, socket_timeout=3)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()

    def queue(self, name: str, **options: Any) -> Any:
        return redis_message_queue.RedisMessageQueue(name, client=self.client, **options)

    @contextlib.asynccontextmanager
    async def block(self, context: Any) -> AsyncIterator[Any]:
        with context as received:
            yield received

    async def run(self, queue: Any, handler: Callable[[Any], Awaitable[None]], **options: Any) -> None:
        """Handlers run in threads, each with an event loop of its own for the time of one message."""

        async def handle(message: Any) -> None:
            await handler(message)

        await asyncio.to_thread(queue.run, lambda message: asyncio.run(handle(message)), **options)


class AsyncShell(Shell):
    """Awaits."""

    async def __aenter__(self) -> Self:
        make = redis.asyncio.RedisCluster.from_url if self._is_cluster else redis.asyncio.Redis.from_url
        self.client = make(self._url, socket_timeout=3)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    def queue(self, name: str, **options: Any) -> Any:
        return redis_message_queue.asyncio.RedisMessageQueue(name, client=self.client, **options)

    def block(self, context: Any) -> Any:
        return context

    async def run(self, queue: Any, handler: Callable[[Any], Awaitable[None]], **options: Any) -> None:
        await queue.run(handler, **options)


SHELLS: dict[str, type[Shell]] = {"sync": SyncShell, "async": AsyncShell}
