"""The gateway of the async queue: a client, and how messages are kept in Redis."""

from __future__ import annotations

from dataclasses import dataclass

import redis.asyncio

from redis_message_queue.asyncio.abstract import AbstractRedisGateway
from redis_message_queue.asyncio.message import ReceivedMessage
from redis_message_queue.asyncio.redis_port import AsyncioPort
from redis_message_queue.asyncio.runtime import AsyncioRuntime
from redis_message_queue.options import declared as options
from redis_message_queue.protocol.gateway.operations import Operations
from redis_message_queue.redis_py.client_gateway import ClientGateway, delegated


@dataclass(frozen=True, kw_only=True)
class GatewayArguments(options.GatewayArguments):
    """The arguments of the constructor, with the types of this package."""

    redis_client: redis.asyncio.Redis | redis.asyncio.RedisCluster


class RedisGateway(ClientGateway, AbstractRedisGateway):
    """Keeps the messages of queues in Redis: a client, and options that several queues share.

    It implements the seven operations of `AbstractRedisGateway`. If a subclass overrides some of them, the queue
    calls these and does the rest itself.
    """

    _asynchronous = True
    _port_class = AsyncioPort
    _runtime_class = AsyncioRuntime
    _contract = AbstractRedisGateway
    _message_class = ReceivedMessage

    @options.constructor(GatewayArguments)
    def __init__(self, arguments: GatewayArguments) -> None:
        self._open(arguments.redis_client, arguments)

    publish_message = delegated(Operations.publish_message)
    add_message = delegated(Operations.add_message)
    move_message = delegated(Operations.move_message)
    remove_message = delegated(Operations.remove_message)
    renew_message_lease = delegated(Operations.renew_message_lease)
    wait_for_message_and_move = delegated(Operations.wait_for_message_and_move)
    trim_queue = delegated(Operations.trim_queue)
