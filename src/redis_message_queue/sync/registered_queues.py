"""The queues of a server, for the sync shell."""

from __future__ import annotations

from typing import Any

import redis

from redis_message_queue.protocol import queue_contract
from redis_message_queue.protocol.operate.registry import gateway_settings, registered_queues
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue_contract import described_as
from redis_message_queue.redis_py import wire
from redis_message_queue.sync.message_queue import RedisMessageQueue
from redis_message_queue.sync.redis_gateway import RedisGateway
from redis_message_queue.sync.redis_port import BlockingPort
from redis_message_queue.values.messages import RegisteredQueue


@described_as(queue_contract.queues)
def queues(client: redis.Redis | redis.RedisCluster, *, max_queues: int = 1_000) -> list[RegisteredQueue]:
    wire.refuse_unusable_client(client, asynchronous=False)
    return finish(registered_queues(BlockingPort(client), max_queues))


@described_as(queue_contract.open_registered)
def open_registered(
    registered: RegisteredQueue, client: redis.Redis | redis.RedisCluster, **options: Any
) -> RedisMessageQueue:
    gateway = RedisGateway(redis_client=client, **gateway_settings(registered) | options)
    return RedisMessageQueue(
        registered.name, gateway=gateway, key_separator=registered.key_separator, partitions=registered.partitions
    )
