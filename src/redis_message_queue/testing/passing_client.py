"""An asyncio client for tests that leaves no connection open, whoever runs their loop and whenever it ends."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from redis_message_queue.embedded import EmbeddedRedis


class PassingPool(redis.asyncio.ConnectionPool):
    """Closes each connection when it comes back.

    A connection that stayed open would have to be closed in its own loop, which is gone when a fixture ends; and a
    client that is used in two loops would find the connections of the first.
    """

    async def release(self, connection: Any) -> None:
        await connection.disconnect()
        await super().release(connection)


def passing_client(server: EmbeddedRedis, **options: Any) -> redis.asyncio.Redis:
    """A client of the server that nobody need close."""
    ordinary = server.async_client(**options)
    settings = ordinary.connection_pool.connection_kwargs
    return redis.asyncio.Redis(connection_pool=PassingPool(**settings))
