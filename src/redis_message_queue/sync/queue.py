"""The queue for threads and processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, cast

from redis_message_queue import checks, options
from redis_message_queue.client_gateway import open_queue
from redis_message_queue.errors import PublishNotConfirmedError
from redis_message_queue.events import QueueEvent
from redis_message_queue.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import Journal, OverloadPolicy
from redis_message_queue.process_bound import ProcessBound
from redis_message_queue.protocol.delivery import Delivery, current_message
from redis_message_queue.protocol.feed import RunOptions, RunSummary
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.retry_policy import RetryPolicy
from redis_message_queue.sync.abstract import AbstractRedisGateway
from redis_message_queue.sync.awaitable import refuse_awaitable
from redis_message_queue.sync.batch import ProcessMessages
from redis_message_queue.sync.gateway import RedisGateway
from redis_message_queue.sync.loop import Loop
from redis_message_queue.sync.message import ReceivedMessage
from redis_message_queue.sync.operator import OperatorMethods


class RedisMessageQueue(OperatorMethods, ProcessBound):
    """A queue of messages in Redis: publish at one end, process at the other.

    Give it a redis-py ``client``, or a ``gateway`` that holds one. Every feature beyond that is optional; the
    options are described one by one in the reference.
    """

    def __init__(
        self,
        name: str,
        *,
        client: Any = None,
        gateway: AbstractRedisGateway | None = None,
        deduplication: bool = False,
        get_deduplication_key: Callable[[Any], Any] | None = None,
        enable_completed_queue: bool = False,
        enable_failed_queue: bool = False,
        max_completed_length: int | None = options.DEFAULT_TRACKING_LENGTH,
        max_failed_length: int | None = options.DEFAULT_TRACKING_LENGTH,
        visibility_timeout_seconds: float | None = options.DEFAULT_VISIBILITY_TIMEOUT_SECONDS,
        heartbeat_interval_seconds: float | None = None,
        max_processing_seconds: float | None = None,
        retry_policy: RetryPolicy | None = None,
        on_heartbeat_failure: Callable[[], Any] | None = None,
        max_delivery_count: int | None = options.DEFAULT_MAX_DELIVERY_COUNT,
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
        strict_payload_types: bool = False,
        max_payload_bytes: int | None = None,
        max_payload_depth: int | None = None,
        interrupt: BaseGracefulInterruptHandler | None = None,
        on_event: Callable[[QueueEvent], Any] | None = None,
        get_headers: Callable[[], Any] | None = None,
        message_wait_interval_seconds: float = options.DEFAULT_WAIT_SECONDS,
        message_deduplication_log_ttl_seconds: float = options.DEFAULT_DEDUPLICATION_SECONDS,
        retry_budget_seconds: float = options.DEFAULT_RETRY_BUDGET_SECONDS,
        retry_initial_delay_seconds: float = options.DEFAULT_RETRY_INITIAL_DELAY_SECONDS,
        retry_max_delay_seconds: float = options.DEFAULT_RETRY_MAX_DELAY_SECONDS,
        key_separator: str = "::",
        hash_tag: bool | None = None,
    ) -> None:
        for callback in ("get_deduplication_key", "on_heartbeat_failure", "on_event", "get_headers"):
            checks.plain_function(callback, locals()[callback])
        self._protocol = open_queue(locals(), RedisGateway)

    @property
    def key(self) -> QueueKeys:
        """The names of this queue's Redis keys."""
        return self._protocol.store.keys

    def publish(
        self,
        message: str | dict[str, Any],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
    ) -> bool:
        """Put a message into the queue. False if deduplication suppressed it.

        With ``tenant`` it waits in that tenant's own line, and tenants take turns. With ``delay_seconds`` or ``at`` (a
        datetime with a time zone) it is delivered no earlier than that. ``repeat_of`` is the error of an earlier
        publish of this message that was not confirmed: the same call is made once more, and counts once.
        """
        details: dict[str, Any] = {"tenant": tenant, "delay_seconds": delay_seconds, "at": at, "repeat_of": repeat_of}
        return finish(self._protocol.outbox.publish(message, **details))

    def publish_many(
        self,
        messages: Iterable[str | dict[str, Any]],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
    ) -> list[bool]:
        """Put many messages into the queue, in their order; for each what `publish` would say.

        They go in chunks of up to 1,000, each one script: all of a chunk or nothing. An error has the ``results`` of
        the chunks before it, so ``messages[len(error.results):]`` is what is left.
        """
        outbox = self._protocol.outbox
        return finish(
            outbox.publish_many(messages, tenant=tenant, delay_seconds=delay_seconds, at=at, repeat_of=repeat_of)
        )

    def process_message(self) -> ProcessMessage:
        """A context with the next message, or None if none came while it waited.

        Leaving it normally acknowledges the message, an exception takes the failure path, and anything that
        is not an `Exception` leaves the message to its lease.
        """
        return ProcessMessage(self._protocol)

    def process_message_callback(self, handler: Callable[[Any], Any]) -> bool:
        """Give the next message to ``handler``. False if there was none."""
        checks.required_function("handler", handler)
        context = self.process_message()
        with context as message:
            if message is None:
                return False
            result = handler(message)
            if inspect.isawaitable(result):
                context.leave_alone()
                refuse_awaitable(result)
        return True

    def process_messages(self, max_messages: int, *, wait_seconds: float | None = None) -> ProcessMessages:
        """A context with a batch of up to ``max_messages`` messages, claimed in one step; empty if none came.

        ``batch.ack(message)`` and ``batch.fail(message, error)`` settle one message now. Leaving normally acknowledges
        the rest in one round trip; an exception gives the rest back to the front of the queue, in its order; anything
        that is not an `Exception` leaves it to its lease. One heartbeat renews the whole batch.
        """
        return ProcessMessages(self._protocol.batch(max_messages, wait_seconds))

    def run(
        self,
        handler: Callable[[Any], Any],
        *,
        concurrency: int = 1,
        prefetch: int = 1,
        batch_size: int | None = None,
        batch_seconds: float | None = None,
        until_empty: bool = False,
    ) -> RunSummary:
        """Give messages to ``handler`` until somebody stops it: the queue's interrupt, or a drain.

        Each message is a `ReceivedMessage`. It is acknowledged when the handler returns, and takes the failure path
        when it raises; the loop goes on. ``concurrency`` workers, threads or tasks, are at it. ``prefetch`` messages
        are claimed in one round trip, and acknowledgements travel with the next claim. With ``batch_size`` the handler
        gets a list of up to so many messages, or of what came in ``batch_seconds``. With ``until_empty`` it ends when
        nothing waits. What was begun is finished, what was not is given back.
        """
        options = RunOptions(
            handler=handler,
            concurrency=concurrency,
            prefetch=prefetch,
            batch_size=batch_size,
            batch_seconds=batch_seconds,
            until_empty=until_empty,
        )
        return Loop(self._protocol, options).run()

    def current_message(self) -> ReceivedMessage | None:
        """The message that the handler around this call holds, with what is known about its delivery."""
        return cast(ReceivedMessage | None, current_message(self._protocol))

    def drain(self, timeout: float | None = None) -> bool:
        """End this object's work: refuse publishes, claim nothing more, give back claims that no handler has seen.

        Waits for publishes under way and interrupts one that waits for room; handlers are yours to wait for. True if
        nothing is in doubt any more; False if the time was up or Redis out of reach, and then call it again. With a
        timeout of 0 it only shuts and looks.
        """
        return finish(self._protocol.drain(timeout))

    def close(self, timeout: float | None = None) -> bool:
        """The same as `drain`."""
        return self.drain(timeout)

    @property
    def is_draining(self) -> bool:
        """Whether `drain` was called on this object."""
        return self._protocol.gate.is_shut

    @property
    def is_drained(self) -> bool:
        """Whether a `drain` of this object has finished its work."""
        return self._protocol.is_drained


class ProcessMessage(ProcessBound):
    """One message for one ``with`` block."""

    def __init__(self, protocol: QueueProtocol) -> None:
        self._protocol = protocol
        self._delivery: Delivery | None = None

    def __enter__(self) -> Any:
        if self._delivery is not None:
            raise RuntimeError("this context is in use; call process_message() again for another message")
        delivery = self._delivery = self._protocol.delivery()
        try:
            finish(delivery.enter())
            if delivery.attempt is None:
                return None
            payload = delivery.payload
            # The last step before the handler: up to here Ctrl-C leaves a claim that is found again.
            delivery.attempt.unsure = False
            return payload
        except BaseException:
            self._delivery = None
            delivery.abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            finish(delivery.leave(error))

    def leave_alone(self) -> None:
        """Whatever the handler did, the message is left to its lease."""
        if self._delivery is not None:
            self._delivery.hands_off = True
