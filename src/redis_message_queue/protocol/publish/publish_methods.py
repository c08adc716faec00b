"""The methods that publish: the asyncio queue has them as they are, the blocking one runs them to their end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.values.errors import PublishNotConfirmedError
from redis_message_queue.values.messages import Receipt

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol


class PublishMethods(Generic[M]):
    """The methods for producers."""

    _protocol: QueueProtocol

    async def publish(
        self,
        message: M | dict[str, Any],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        deduplication_key: str | None = None,
        ttl_seconds: float | None = None,
        partition_key: str | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        timeout_seconds: float | None = None,
    ) -> bool:
        """Add a message to the queue.

        Returns True, or False if deduplication suppressed it. A call that was interrupted or got no reply can be
        retried: with deduplication the message is stored once.

        Args:
            message: A str, or a dict that can be encoded as JSON; with a ``codec``, what it encodes.
            tenant: Whose queue to put it in. Tenants are served round-robin.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            headers: Texts that are delivered with the message: a mapping of str to str, added to what ``get_headers``
                returns.
            deduplication_key: Suppress the message if this key was published within the deduplication window, whatever
                the queue's own options say.
            ttl_seconds: How long the message may wait. If it is older when its turn comes, it goes to the dead letters.
            partition_key: In a queue with partitions: what decides on the partition. None takes the tenant, else the
                deduplication key, else each partition in turn.
            repeat_of: The error of an earlier publish of this message that was not confirmed. The same call is sent
                again, and counts once.
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            PayloadTypeError, PayloadValueError, PayloadTooLargeError, PayloadTooDeepError: The message cannot be
                stored.
            ConfigurationError: Another argument cannot be used.
            QueueBackpressureError: The queue is full; nothing was stored.
            QueueDrainedError: This object was drained; nothing was stored.
            PublishNotConfirmedError: The replicas or the disk did not confirm it in time; pass the error as
                ``repeat_of``.
            RetryBudgetExhaustedError: Redis could not be reached in time; it is unknown whether the message was
                stored, unless the error's ``was_sent`` is False.
        """
        overrides = None
        is_plain = tenant is None and delay_seconds is None and at is None and headers is None and repeat_of is None
        is_plain = is_plain and deduplication_key is None and ttl_seconds is None and partition_key is None
        if not is_plain or timeout_seconds is not None:
            details = (tenant, delay_seconds, at, headers, deduplication_key, ttl_seconds, partition_key, repeat_of)
            overrides = PublishOverrides(*details, timeout_seconds, self._protocol.port.now())
        return await self._protocol.publisher.publish(message, overrides)

    async def publish_many(
        self,
        messages: Iterable[M | dict[str, Any]],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        partition_key: str | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        timeout_seconds: float | None = None,
    ) -> list[bool]:
        """Add many messages to the queue, in their order.

        Returns for each message what `publish` would return. The messages are sent in chunks of up to 1,000, and
        each chunk is stored as a whole or not at all.

        Args:
            messages: An iterable of str or dict; with a ``codec``, of what it encodes.
            tenant: Whose queue to put them in.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            headers: Texts that are delivered with each message: a mapping of str to str, added to what ``get_headers``
                returns.
            ttl_seconds: How long a message may wait. If it is older when its turn comes, it goes to the dead letters.
            partition_key: In a queue with partitions: what decides on the partition. None takes the tenant, else the
                deduplication key, else each partition in turn.
            repeat_of: The error of an earlier publish of these messages that was not confirmed.
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            Exception: What `publish` raises. The error has the ``results`` of the chunks before it, so
                ``messages[len(error.results):]`` still need to be published.
        """
        details = (tenant, delay_seconds, at, headers, None, ttl_seconds, partition_key, repeat_of)
        overrides = PublishOverrides(*details, timeout_seconds, self._protocol.port.now())
        return await self._protocol.publisher.publish_many(messages, overrides)

    async def submit(
        self,
        message: M | dict[str, Any],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        deduplication_key: str | None = None,
        ttl_seconds: float | None = None,
        partition_key: str | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        timeout_seconds: float | None = None,
    ) -> Receipt:
        """Add a message to the queue, and get a receipt with its id.

        It does the same as `publish`, in the same round trip. For a duplicate, one more round trip finds the message
        that holds the deduplication key; ``duplicate_of`` is None if its window has ended meanwhile.

        Args:
            message: A str, or a dict that can be encoded as JSON; with a ``codec``, what it encodes.
            tenant: Whose queue to put it in. Tenants are served round-robin.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            headers: Texts that are delivered with the message: a mapping of str to str, added to what ``get_headers``
                returns.
            deduplication_key: Suppress the message if this key was published within the deduplication window, whatever
                the queue's own options say.
            ttl_seconds: How long the message may wait. If it is older when its turn comes, it goes to the dead letters.
            partition_key: In a queue with partitions: what decides on the partition. None takes the tenant, else the
                deduplication key, else each partition in turn.
            repeat_of: The error of an earlier publish of this message that was not confirmed. The same call is sent
                again, and counts once.
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            GatewayContractError: The queue has a custom gateway.
            Exception: What `publish` raises.
        """
        details = (tenant, delay_seconds, at, headers, deduplication_key, ttl_seconds, partition_key, repeat_of)
        overrides = PublishOverrides(*details, timeout_seconds, self._protocol.port.now())
        (receipt,) = await self._protocol.publisher.submit_many([message], overrides)
        return receipt

    async def submit_many(
        self,
        messages: Iterable[M | dict[str, Any]],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        partition_key: str | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Receipt]:
        """Add many messages to the queue, in their order, and get a receipt for each.

        Args:
            messages: An iterable of str or dict; with a ``codec``, of what it encodes.
            tenant: Whose queue to put them in.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            headers: Texts that are delivered with each message: a mapping of str to str, added to what ``get_headers``
                returns.
            ttl_seconds: How long a message may wait. If it is older when its turn comes, it goes to the dead letters.
            partition_key: In a queue with partitions: what decides on the partition. None takes the tenant, else the
                deduplication key, else each partition in turn.
            repeat_of: The error of an earlier publish of these messages that was not confirmed.
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            GatewayContractError: The queue has a custom gateway.
            Exception: What `publish_many` raises. The error has the ``receipts`` of the chunks before it.
        """
        details = (tenant, delay_seconds, at, headers, None, ttl_seconds, partition_key, repeat_of)
        overrides = PublishOverrides(*details, timeout_seconds, self._protocol.port.now())
        return await self._protocol.publisher.submit_many(messages, overrides)
