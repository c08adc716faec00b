"""The queue for asyncio tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, cast

import redis.asyncio

from redis_message_queue.asyncio.abstract import AbstractRedisGateway
from redis_message_queue.asyncio.batch import ProcessMessages
from redis_message_queue.asyncio.message import ReceivedMessage
from redis_message_queue.asyncio.operator_methods import OperatorMethods
from redis_message_queue.asyncio.redis_gateway import RedisGateway
from redis_message_queue.asyncio.run_loop import Loop, wrapped
from redis_message_queue.asyncio.tenant import Tenant
from redis_message_queue.options import declared as options
from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.protocol.consume.claim_attempt import HANDED_OVER
from redis_message_queue.protocol.consume.message_block import MessageBlock, current_message
from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.loop.run_options import Middleware, RunOptions, RunSummary
from redis_message_queue.protocol.publish.message_builder import per_call
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.redis_py.client_gateway import open_queue
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values import checks
from redis_message_queue.values.errors import PublishNotConfirmedError
from redis_message_queue.values.messages import Receipt
from redis_message_queue.version import __version__


@dataclass(frozen=True, kw_only=True)
class QueueArguments(options.QueueArguments):
    """What the constructor takes, with the types of this package."""

    client: redis.asyncio.Redis | redis.asyncio.RedisCluster | None = None
    gateway: AbstractRedisGateway | None = None


class RedisMessageQueue(OperatorMethods[M], ProcessBound):
    """A queue of messages in Redis: publish at one end, process at the other.

    Give it a redis-py ``client``, or a ``gateway`` that has one. Everything else is optional. Leases are on by
    default: a message whose consumer crashes is delivered again after ``visibility_timeout_seconds``.

    Handlers must be idempotent: a message can be delivered more than once.
    """

    __version__ = __version__

    @options.constructor(QueueArguments)
    def __init__(self, arguments: QueueArguments) -> None:
        self._protocol = open_queue(arguments, RedisGateway)

    @property
    def key(self) -> QueueKeys:
        """The names of this queue's Redis keys.

        Raises:
            ConfigurationError: The queue has partitions, each with its own keys: use `partition`.
        """
        return self._protocol.keys

    @property
    def partitions(self) -> int:
        """How many partitions the queue has."""
        return len(self._protocol.parts)

    def partition(self, number: int) -> RedisMessageQueue:
        """Return one partition as a queue of its own, to look at its keys or to work with this part alone.

        What you publish there stays there, whatever its keys are. A queue without partitions is its own partition 0.

        Args:
            number: Which one, from 0.

        Raises:
            ConfigurationError: The queue has no such partition.
        """
        part = object.__new__(RedisMessageQueue)
        part._protocol = self._protocol.partition(number)
        return part

    async def publish(
        self,
        message: M,
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        deduplication_key: str | None = None,
        ttl_seconds: float | None = None,
        partition_key: str | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
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

        Raises:
            PayloadTypeError, PayloadValueError, PayloadTooLargeError, PayloadTooDeepError: The message cannot be
                stored.
            ConfigurationError: Another argument cannot be used.
            QueueBackpressureError: The queue is full; nothing was stored.
            QueueDrainedError: This object was drained; nothing was stored.
            PublishNotConfirmedError: The replicas or the disk did not confirm it in time; pass the error as
                ``repeat_of``.
            RetryBudgetExhaustedError: Redis could not be reached in time; it is unknown whether the message was
                stored.
        """
        return await self._protocol.publisher.publish(
            message,
            tenant=tenant,
            delay_seconds=delay_seconds,
            at=at,
            repeat_of=repeat_of,
            given=per_call(headers, deduplication_key, ttl_seconds, partition_key),
        )

    async def publish_many(
        self,
        messages: Iterable[M],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        partition_key: str | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
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

        Raises:
            Exception: What `publish` raises. The error has the ``results`` of the chunks before it, so
                ``messages[len(error.results):]`` still need to be published.
        """
        publisher = self._protocol.publisher
        return await publisher.publish_many(
            messages,
            tenant=tenant,
            delay_seconds=delay_seconds,
            at=at,
            repeat_of=repeat_of,
            given=per_call(headers, None, ttl_seconds, partition_key),
        )

    async def submit(
        self,
        message: M,
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        deduplication_key: str | None = None,
        ttl_seconds: float | None = None,
        partition_key: str | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
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

        Raises:
            GatewayContractError: The queue has a custom gateway.
            Exception: What `publish` raises.
        """
        (receipt,) = await self._protocol.publisher.submit_many(
            [message],
            tenant=tenant,
            delay_seconds=delay_seconds,
            at=at,
            repeat_of=repeat_of,
            given=per_call(headers, deduplication_key, ttl_seconds, partition_key),
        )
        return receipt

    async def submit_many(
        self,
        messages: Iterable[M],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        partition_key: str | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
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

        Raises:
            GatewayContractError: The queue has a custom gateway.
            Exception: What `publish_many` raises. The error has the ``receipts`` of the chunks before it.
        """
        return await self._protocol.publisher.submit_many(
            messages,
            tenant=tenant,
            delay_seconds=delay_seconds,
            at=at,
            repeat_of=repeat_of,
            given=per_call(headers, None, ttl_seconds, partition_key),
        )

    def process_message(self) -> ProcessMessage:
        """Get the next message, for one ``with`` block.

        The block gets the payload, or None if no message arrived within ``message_wait_interval_seconds``. Leaving
        the block normally acknowledges the message. An exception fails it: it is retried, or kept in ``failed``, as
        the options say. `RetryLater`, `Discard` and `DeadLetter` decide what becomes of it, and end the block
        normally. `KeyboardInterrupt`, `SystemExit` and cancellation leave it to its lease.

        Raises:
            RetryBudgetExhaustedError: Redis could not be reached in time. A message that was claimed meanwhile is
                recovered by the next call.
            CleanupFailedError: The handler succeeded, and the message could not be acknowledged; it may be delivered
                again.
        """
        return ProcessMessage(self._protocol)

    async def process_message_callback(self, handler: Callable[[Any], Any]) -> bool:
        """Call ``handler`` with the payload of the next message.

        Returns False if no message arrived within ``message_wait_interval_seconds``.

        Args:
            handler: Called with the payload. Its exception fails the message and is raised here, unless it is a
                `HandlerOutcome`.

        Raises:
            ConfigurationTypeError: ``handler`` cannot be called.
            Exception: What ``handler`` or `process_message` raises.
        """
        checks.required_function("handler", handler)
        async with self.process_message() as message:
            if message is None:
                return False
            result = handler(message)
            if inspect.isawaitable(result):
                await result
        return True

    def process_messages(self, max_messages: int, *, wait_seconds: float | None = None) -> ProcessMessages[M]:
        """Get a batch of messages, for one ``with`` block.

        The batch is claimed in one step, and is empty if no message arrived. ``batch.ack(message)`` and
        ``batch.fail(message, error)`` settle one message at once. Leaving the block normally acknowledges the rest
        in one round trip. An exception requeues the rest at the front of the queue, in order. `KeyboardInterrupt`,
        `SystemExit` and cancellation leave it to its lease. One heartbeat renews the whole batch.

        Args:
            max_messages: How many messages to claim at most, up to 1,000.
            wait_seconds: How long to wait for the first message; None takes ``message_wait_interval_seconds``.

        Raises:
            ConfigurationError: An argument cannot be used.
            RetryBudgetExhaustedError, CleanupFailedError: As in `process_message`.
        """
        return ProcessMessages[M](self._protocol, max_messages, wait_seconds)

    @checks.suggests_options
    async def run(
        self,
        handler: Callable[[Any], Any],
        *,
        concurrency: int = 1,
        prefetch: int = 1,
        batch_size: int | None = None,
        batch_seconds: float | None = None,
        until_empty: bool = False,
        wait_for_retries: bool = False,
        middleware: Sequence[Middleware] = (),
    ) -> RunSummary:
        """Call ``handler`` with messages until you stop it with the queue's ``interrupt`` or with `drain`.

        A message is acknowledged when its handler returns, and fails when it raises; the loop continues either way.
        A handler can also raise `RetryLater`, `Discard` or `DeadLetter` to decide what becomes of its message.
        When the loop stops, running handlers finish, and messages that no handler has started are requeued.

        Args:
            handler: Called with a `ReceivedMessage`, or with a list of them if ``batch_size`` is set.
            concurrency: How many handlers run at the same time: threads in the sync queue, tasks in the async one.
            prefetch: How many messages to claim in one round trip. Acknowledgements are sent with the next claim.
            batch_size: Call the handler with a list of up to this many messages.
            batch_seconds: How long to wait until a batch is full.
            until_empty: Return when no message is waiting.
            wait_for_retries: With ``until_empty``, also wait for the next attempts of messages that this loop retries.
            middleware: Functions around the handler, the outermost first. Each is called with what the handler gets and
                with ``call_next``, and usually returns what ``call_next(message)`` returns. What it raises counts as
                raised by the handler; if it returns without calling, the message is acknowledged.

        Returns:
            RunSummary: How many messages were handled, failed, discarded, requeued, dead-lettered and left unsettled,
                and how many attempts that took.

        Raises:
            CleanupFailedError: Redis refused an acknowledgement. One that Redis does not answer is retried beside the
                handlers and then left to the lease.
            ConfigurationError: An argument cannot be used.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """
        options = RunOptions(
            handler=wrapped(handler, middleware),
            concurrency=concurrency,
            prefetch=prefetch,
            batch_size=batch_size,
            batch_seconds=batch_seconds,
            until_empty=until_empty,
            wait_for_retries=wait_for_retries,
        )
        return await Loop(self._protocol, options).run()

    def tenant(self, name: str) -> Tenant[M]:
        """Return one tenant's own queue.

        Args:
            name: The tenant.

        Raises:
            ConfigurationError: The name is empty or too long.
        """
        return Tenant[M](self, name)

    def current_message(self) -> ReceivedMessage[M] | None:
        """Return the message that the handler around this call is working on, or None outside of a handler.

        Raises:
            GatewayContractError: The queue has a custom gateway, which passes on payloads only.
        """
        return cast(ReceivedMessage[M] | None, current_message(self._protocol))

    async def drain(self, timeout: float | None = None) -> bool:
        """Stop accepting work, and wait until everything that was started is settled.

        Publishes are refused from now on, and consumers claim nothing more. Publishes that are under way are waited
        for, and a publish that waits for room is interrupted. Claims that no handler has seen are requeued. Running
        handlers are not waited for. A drained object stays drained.

        Args:
            timeout: How many seconds to wait; None waits as long as it takes. With 0 it stops accepting work and
                returns immediately.

        Returns:
            bool: True if nothing is under way or unconfirmed any more. False if the time was up or Redis could not
                be reached: call it again.

        Raises:
            ConfigurationError: ``timeout`` is negative.
        """
        return await self._protocol.drain(timeout)

    async def aclose(self, timeout: float | None = None) -> bool:
        """Do the same as `drain`."""
        return await self.drain(timeout)

    @property
    def is_draining(self) -> bool:
        """Whether `drain` was called on this object."""
        return self._protocol.gate.is_shut

    @property
    def is_drained(self) -> bool:
        """Whether a `drain` of this object has finished."""
        return self._protocol.is_drained


class ProcessMessage(ProcessBound):
    """One message for one ``with`` block."""

    def __init__(self, protocol: QueueProtocol) -> None:
        self._protocol = protocol
        self._block: MessageBlock | None = None

    async def __aenter__(self) -> Any:
        if self._block is not None:
            raise RuntimeError("this context is in use; call process_message() again for another message")
        block = self._block = self._protocol.message_block()
        try:
            attempt = block.begin(await block.claim())
            if attempt is None:
                return None
            payload = block.payload
            # The last step before the handler: up to here a cancellation leaves a claim that is recovered.
            attempt.state = HANDED_OVER
            return payload
        except BaseException:
            self._block = None
            block.abandon()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        block, self._block = self._block, None
        return False if block is None else await block.leave(error)
