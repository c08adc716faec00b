"""An asyncio client for tests that closes each connection after use, so that it works in any event loop."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from redis_message_queue.embedded import EmbeddedRedis


class ShortLivedConnectionPool(redis.asyncio.ConnectionPool):
    """Closes each connection when it is released.

    An open connection must be closed in the event loop that made it, and that loop is gone when a fixture ends. Nor
    could a second event loop use it.
    """

    async def release(self, connection: Any) -> None:
        await connection.disconnect()
        await super().release(connection)


def short_lived_client(server: EmbeddedRedis, **options: Any) -> redis.asyncio.Redis:
    """Return a client of ``server`` that you do not have to close."""
    settings = server.async_client(**options).connection_pool.connection_kwargs
    return redis.asyncio.Redis(connection_pool=ShortLivedConnectionPool(**settings))
