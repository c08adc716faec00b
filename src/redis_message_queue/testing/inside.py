"""What the tools for tests need to know of a queue object that its user need not."""

from __future__ import annotations

from typing import Any, cast

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue.errors import ConfigurationTypeError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.protocol.port import Port
from redis_message_queue.protocol.queue import QueueProtocol

BlockingQueue = redis_message_queue.RedisMessageQueue
AsyncioQueue = redis_message_queue.asyncio.RedisMessageQueue
Queue = BlockingQueue | AsyncioQueue
Client = redis.Redis | redis.asyncio.Redis


def is_queue(thing: Any) -> bool:
    return isinstance(thing, BlockingQueue | AsyncioQueue)


def protocol_of(queue: Queue) -> QueueProtocol:
    """Its rules; what is no queue of ours, or keeps its messages in its own way, is refused."""
    if not is_queue(queue):
        raise ConfigurationTypeError(f"queue must be a RedisMessageQueue of either colour, not {type(queue).__name__}")
    protocol = queue._protocol
    if protocol.store.calls is None:
        raise ConfigurationTypeError(
            "this queue has a custom gateway, which keeps its messages in its own way; "
            "use a queue with a client or a RedisGateway"
        )
    return protocol


def port_of(queue: Queue) -> Port:
    return cast(Port, protocol_of(queue).port)


def keys_of(queue: Queue) -> QueueKeys:
    return protocol_of(queue).store.keys


def client_of(thing: Queue | Client) -> Client:
    """The pooled redis-py client of a queue, or the client itself."""
    client: Any = cast(Any, port_of(thing))._client if is_queue(thing) else thing  # type: ignore[arg-type]
    if not isinstance(client, redis.Redis | redis.asyncio.Redis):
        raise ConfigurationTypeError(
            f"give a redis.Redis, a redis.asyncio.Redis or a queue that has one, not a {type(client).__name__}"
        )
    return client
