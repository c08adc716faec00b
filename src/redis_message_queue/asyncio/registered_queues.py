"""The queues of a server, for the async shell."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from redis_message_queue.asyncio.message_queue import RedisMessageQueue
from redis_message_queue.asyncio.redis_gateway import RedisGateway
from redis_message_queue.asyncio.redis_port import AsyncioPort
from redis_message_queue.protocol import queue_contract
from redis_message_queue.protocol.operate.registry import gateway_settings, registered_queues
from redis_message_queue.protocol.queue_contract import described_as
from redis_message_queue.redis_py import wire
from redis_message_queue.values.messages import RegisteredQueue


@described_as(queue_contract.queues)
async def queues(
    client: redis.asyncio.Redis | redis.asyncio.RedisCluster, *, max_queues: int = 1_000
) -> list[RegisteredQueue]:
    wire.refuse_unusable_client(client, asynchronous=True)
    return await registered_queues(AsyncioPort(client), max_queues)


@described_as(queue_contract.open_registered)
def open_registered(
    registered: RegisteredQueue, client: redis.asyncio.Redis | redis.asyncio.RedisCluster, **options: Any
) -> RedisMessageQueue:
    gateway = RedisGateway(redis_client=client, **gateway_settings(registered) | options)
    return RedisMessageQueue(
        registered.name, gateway=gateway, key_separator=registered.key_separator, partitions=registered.partitions
    )
