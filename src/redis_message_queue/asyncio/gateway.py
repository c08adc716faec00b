"""The gateway to Redis of the asyncio shell: a client, and how messages are kept behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_message_queue import options
from redis_message_queue.asyncio.abstract import AbstractRedisGateway
from redis_message_queue.asyncio.message import ReceivedMessage
from redis_message_queue.asyncio.port import AsyncioPort
from redis_message_queue.asyncio.runtime import AsyncioRuntime
from redis_message_queue.client_gateway import ClientGateway
from redis_message_queue.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.messages import ClaimedMessage
from redis_message_queue.options import GatewayOptions, Journal, OverloadPolicy


class RedisGateway(ClientGateway, AbstractRedisGateway):
    """Keeps the messages of queues in Redis: a client, and the settings that several queues share.

    It also offers the seven operations of the contract, each name in them a whole key. A subclass that overrides
    some of them has these called; the queue does the rest by itself.
    """

    _asynchronous = True
    _port_class = AsyncioPort
    _runtime_class = AsyncioRuntime
    _contract = AbstractRedisGateway
    _message_class = ReceivedMessage

    def __init__(
        self,
        *,
        redis_client: Any,
        retry_budget_seconds: float = options.DEFAULT_RETRY_BUDGET_SECONDS,
        retry_initial_delay_seconds: float = options.DEFAULT_RETRY_INITIAL_DELAY_SECONDS,
        retry_max_delay_seconds: float = options.DEFAULT_RETRY_MAX_DELAY_SECONDS,
        message_deduplication_log_ttl_seconds: float = options.DEFAULT_DEDUPLICATION_SECONDS,
        message_wait_interval_seconds: float = options.DEFAULT_WAIT_SECONDS,
        message_visibility_timeout_seconds: float | None = None,
        max_delivery_count: int | None = None,
        dead_letter_queue: str | None = None,
        max_dead_letter_length: int | None = None,
        max_pending_length: int | None = None,
        max_pending_per_tenant: int | None = None,
        pending_overload_policy: OverloadPolicy = "raise",
        pending_overload_block_timeout_seconds: float = 1.0,
        tenant_weights: Mapping[str, int] | None = None,
        message_ttl_seconds: float | None = None,
        journal: Journal = False,
        max_journal_length: int = 1_000_000,
        confirm_replicas: int | None = None,
        confirm_fsync: bool = False,
        confirm_timeout_seconds: float = 1.0,
        hash_tag: bool | None = None,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "redis_client")}
        self._open(redis_client, GatewayOptions(**settings))

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
