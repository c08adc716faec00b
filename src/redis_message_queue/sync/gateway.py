"""The gateway to Redis of the blocking shell: a client, and how messages are kept behind it."""

from __future__ import annotations

from typing import Any

from redis_message_queue import options
from redis_message_queue.client_gateway import ClientGateway
from redis_message_queue.options import GatewayOptions, OverloadPolicy
from redis_message_queue.sync.port import BlockingPort


class RedisGateway(ClientGateway):
    """Keeps the messages of queues in Redis: a client, and the settings that several queues share."""

    _asynchronous = False
    _port_class = BlockingPort

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
        pending_overload_policy: OverloadPolicy = "raise",
        pending_overload_block_timeout_seconds: float = 1.0,
        hash_tag: bool | None = None,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "redis_client")}
        self._open(redis_client, GatewayOptions(**settings))
