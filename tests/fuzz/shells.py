"""One way to call both queues: every method is called, and awaited where that is needed."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue.embedded import EmbeddedRedis


class Shell:
    """The sync or the async package, with a client of its own."""

    def __init__(self, server: EmbeddedRedis, *, is_async: bool) -> None:
        self.is_async = is_async
        self.package: Any = redis_message_queue.asyncio if is_async else redis_message_queue
        self._runner = asyncio.Runner() if is_async else None
        self.client: Any = server.async_client() if is_async else server.client()

    def queue(self, name: Any = "jobs", **options: Any) -> Any:
        return self.package.RedisMessageQueue(name, **{"client": self.client, **options})

    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call it, and wait for what it returns."""
        return self.finish(lambda: function(*arguments, **options))

    def finish(self, function: Any) -> Any:
        if self._runner is None:
            return function()

        async def called() -> Any:
            found = function()
            return await found if inspect.isawaitable(found) else found

        return self._runner.run(called())

    def in_block(self, context: Any, body: Any = None) -> Any:
        """Enter the context, call ``body`` with what it gives, and leave it."""
        if self._runner is None:
            with context as given:
                return given if body is None else body(given)

        async def entered() -> Any:
            async with context as given:
                found = given if body is None else body(given)
                return await found if inspect.isawaitable(found) else found

        return self._runner.run(entered())

    def close(self) -> None:
        if self._runner is None:
            self.client.close()
        else:
            self._runner.run(self.client.aclose())
            self._runner.close()
