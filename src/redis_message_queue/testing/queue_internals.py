"""The parts of a queue object that the testing tools need and its users do not see."""

from __future__ import annotations

from typing import Any, cast

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue.protocol.port import Port
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import ConfigurationTypeError

SyncQueue = redis_message_queue.RedisMessageQueue
AsyncQueue = redis_message_queue.asyncio.RedisMessageQueue
Queue = SyncQueue | AsyncQueue
Client = redis.Redis | redis.asyncio.Redis


def protocol_of(queue: Queue) -> QueueProtocol:
    """Return the protocol of a queue; raise if this is not a queue, or if it has a custom gateway."""
    if not isinstance(queue, Queue):
        raise ConfigurationTypeError(f"queue must be a RedisMessageQueue, sync or async, not {type(queue).__name__}")
    protocol = queue._protocol
    if not protocol.store.capabilities.operators:
        raise ConfigurationTypeError(
            f"the queue {protocol.options.name!r} has a custom gateway, so the testing tools do not know where its "
            "messages are; use a queue with a client or a RedisGateway"
        )
    return protocol


def port_of(queue: Queue) -> Port:
    return cast(Port, protocol_of(queue).port)


def keys_of(queue: Queue) -> list[QueueKeys]:
    """Return the keys of each partition."""
    return [part.keys for part in protocol_of(queue).parts]


def client_of(queue_or_client: Queue | Client) -> Client:
    """Return the redis-py client of a queue, or the client itself; raise if it has no connection pool."""
    client: Any = queue_or_client
    if isinstance(queue_or_client, Queue):
        port: Any = port_of(queue_or_client)
        client = port._client
    if not isinstance(client, Client):
        raise ConfigurationTypeError(
            f"give a redis.Redis, a redis.asyncio.Redis or a queue that has one, not a {type(client).__name__}"
        )
    return client
