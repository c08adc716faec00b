"""The gateway of the async queue: a client, and how messages are kept in Redis."""

from __future__ import annotations

from dataclasses import dataclass

import redis.asyncio

from redis_message_queue.asyncio.abstract import AbstractRedisGateway
from redis_message_queue.asyncio.message import ReceivedMessage
from redis_message_queue.asyncio.redis_port import AsyncioPort
from redis_message_queue.asyncio.runtime import AsyncioRuntime
from redis_message_queue.options import declared as options
from redis_message_queue.process.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.redis_py.client_gateway import ClientGateway
from redis_message_queue.values.messages import ClaimedMessage


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

    async def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        return await self._operations.publish_message(queue, message, dedup_key)

    async def add_message(self, queue: str, message: str) -> None:
        await self._operations.add_message(queue, message)

    async def move_message(
        self, from_queue: str, to_queue: str, message: str | bytes, *, lease_token: str | None = None
    ) -> bool:
        return await self._operations.move_message(from_queue, to_queue, message, lease_token)

    async def remove_message(self, queue: str, message: str | bytes, *, lease_token: str | None = None) -> bool:
        return await self._operations.remove_message(queue, message, lease_token)

    async def renew_message_lease(
        self,
        queue: str,
        message: str | bytes,
        lease_token: str,
        *,
        is_interrupted: BaseGracefulInterruptHandler | None = None,
    ) -> bool:
        return await self._operations.renew_message_lease(queue, lease_token, is_interrupted)

    async def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | str | bytes | None:
        return await self._operations.wait_for_message_and_move(from_queue, to_queue)

    async def trim_queue(self, queue: str, max_length: int) -> None:
        await self._operations.trim_queue(queue, max_length)
