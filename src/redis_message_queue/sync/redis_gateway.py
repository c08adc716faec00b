"""The gateway of the sync queue: a client, and how messages are kept in Redis."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from redis_message_queue.options import declared as options
from redis_message_queue.protocol.gateway.operations import Operations
from redis_message_queue.redis_py.client_gateway import ClientGateway, delegated
from redis_message_queue.sync.abstract import AbstractRedisGateway
from redis_message_queue.sync.blocking import blocking
from redis_message_queue.sync.message import ReceivedMessage
from redis_message_queue.sync.redis_port import BlockingPort
from redis_message_queue.sync.runtime import BlockingRuntime


@dataclass(frozen=True, kw_only=True)
class GatewayArguments(options.GatewayArguments):
    """The arguments of the constructor, with the types of this package."""

    redis_client: redis.Redis | redis.RedisCluster


class RedisGateway(ClientGateway, AbstractRedisGateway):
    """Keeps the messages of queues in Redis: a client, and options that several queues share.

    It implements the seven operations of `AbstractRedisGateway`. If a subclass overrides some of them, the queue
    calls these and does the rest itself.
    """

    _asynchronous = False
    _port_class = BlockingPort
    _runtime_class = BlockingRuntime
    _contract = AbstractRedisGateway
    _message_class = ReceivedMessage

    @options.constructor(GatewayArguments)
    def __init__(self, arguments: GatewayArguments) -> None:
        self._open(arguments.redis_client, arguments)

    publish_message = blocking(delegated(Operations.publish_message))
    add_message = blocking(delegated(Operations.add_message))
    move_message = blocking(delegated(Operations.move_message))
    remove_message = blocking(delegated(Operations.remove_message))
    renew_message_lease = blocking(delegated(Operations.renew_message_lease))
    wait_for_message_and_move = blocking(delegated(Operations.wait_for_message_and_move))
    trim_queue = blocking(delegated(Operations.trim_queue))
