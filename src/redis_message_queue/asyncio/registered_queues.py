"""The queues of a server, for the async shell."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from redis_message_queue.asyncio.message_queue import RedisMessageQueue
from redis_message_queue.asyncio.redis_gateway import RedisGateway
from redis_message_queue.asyncio.redis_port import AsyncioPort
from redis_message_queue.protocol.operate.registry import gateway_settings, registered_queues
from redis_message_queue.redis_py import wire
from redis_message_queue.values.messages import RegisteredQueue


async def queues(
    client: redis.asyncio.Redis | redis.asyncio.RedisCluster, *, max_queues: int = 1_000
) -> list[RegisteredQueue]:
    """Return the queues of a server, sorted by name.

    A queue registers itself at its first contact with the server, as far as its Redis user may do that. So a queue can
    be missing here that exists. One whose keys were deleted is left out.

    Args:
        client: A redis-py client.
        max_queues: How many queues to return at most.

    Raises:
        ConfigurationError: An argument cannot be used.
        RetryBudgetExhaustedError: Redis could not be reached in time.
    """
    wire.refuse_unusable_client(client, asynchronous=True)
    return await registered_queues(AsyncioPort(client), max_queues)


def open_registered(
    registered: RegisteredQueue, client: redis.asyncio.Redis | redis.asyncio.RedisCluster, **options: Any
) -> RedisMessageQueue:
    """Return a queue object for a queue that `queues` has returned.

    Args:
        registered: The entry of the queue.
        client: A redis-py client of the same server.
        options: Further options of `RedisGateway`, for example ``retry_budget_seconds``.

    Raises:
        ConfigurationError: An argument cannot be used.
    """
    gateway = RedisGateway(redis_client=client, **gateway_settings(registered) | options)
    return RedisMessageQueue(
        registered.name, gateway=gateway, key_separator=registered.key_separator, partitions=registered.partitions
    )
