"""The gateway to Redis of the asyncio shell: a client, and how messages are kept behind it."""

from __future__ import annotations

from typing import Any, Self

from redis_message_queue import options, wire
from redis_message_queue.asyncio.port import AsyncioPort
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions, OverloadPolicy
from redis_message_queue.protocol.store import RedisStore


class RedisGateway:
    """Keeps the messages of queues in Redis: a client, and the settings that several queues share."""

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

    @classmethod
    def of_client(cls, client: Any, settings: GatewayOptions) -> Self:
        """The gateway of a queue that was given a bare client."""
        gateway = cls.__new__(cls)
        gateway._open(client, settings)
        return gateway

    def _open(self, client: Any, settings: GatewayOptions) -> None:
        wire.refuse_unusable_client(client, asynchronous=True)
        self._client = client
        self.options = settings
        self._queue: str | None = None
        self.port = AsyncioPort(client)

    @property
    def is_redis_cluster(self) -> bool:
        """Whether the keys of a queue must share a slot."""
        return wire.is_cluster(self._client)

    def store(self, name: str, separator: str) -> RedisStore:
        """The messages of one queue."""
        self._bind(name)
        tagged = self.is_redis_cluster if self.options.hash_tag is None else self.options.hash_tag
        keys = QueueKeys.of(name, separator=separator, dead_letter=self.options.dead_letter_queue, hash_tag=tagged)
        return RedisStore(self.port, keys, self.options)

    def _bind(self, name: str) -> None:
        # The dead-letter list is the gateway's: two queues behind it would mix their dead.
        if self.options.max_delivery_count is not None and self._queue not in (None, name):
            raise ConfigurationError(
                f"this gateway has max_delivery_count and serves the queue {self._queue!r} already; "
                f"make another one for {name!r}"
            )
        self._queue = name
