"""What a queue object does, in either colour."""

from __future__ import annotations

from typing import Any

from redis_message_queue.envelope import content_key
from redis_message_queue.errors import (
    ConfigurationError,
    PayloadTypeError,
    PayloadValueError,
    PublishNotConfirmedError,
    RedisMessageQueueError,
)
from redis_message_queue.events import EventOperation, EventOutcome
from redis_message_queue.options import QueueOptions, number
from redis_message_queue.protocol.delivery import Delivery
from redis_message_queue.protocol.drain import Gate, drain
from redis_message_queue.protocol.port import uncarried
from redis_message_queue.protocol.settle import Keep
from redis_message_queue.protocol.store import Store
from redis_message_queue.protocol.tell import Teller


class QueueProtocol:
    """Publishing and delivering, with the user's rules around the store's verbs."""

    def __init__(self, options: QueueOptions, store: Store) -> None:
        options.check_beside(
            visibility_timeout_seconds=store.options.message_visibility_timeout_seconds,
            overload_policy=store.options.pending_overload_policy,
        )
        self.options = options
        self.store = store
        self.port = store.port
        self.teller = Teller(options.name, options.on_event, store.port)
        self.completed = self._keep(options.enable_completed_queue, store.keys.completed, options.max_completed_length)
        self.failed = self._keep(options.enable_failed_queue, store.keys.failed, options.max_failed_length)
        self.dead_letters = Keep(store.keys.dead_letter, store.options.max_dead_letter_length)
        self.is_drained = False
        self.gate = Gate(store.port.process)
        self._rules = options.payload_rules

    @staticmethod
    def _keep(enabled: bool, key: str, limit: int | None) -> Keep | None:
        return Keep(key, limit) if enabled else None

    def is_stopped(self) -> bool:
        """Whether consumers should take no fresh work."""
        interrupt = self.options.interrupt
        return self.gate.is_shut or (interrupt is not None and interrupt.is_interrupted())

    def delivery(self) -> Delivery:
        """A way to at most one message, not yet begun."""
        return Delivery(self)

    async def publish(self, message: str | dict[str, Any], repeat_of: PublishNotConfirmedError | None = None) -> bool:
        """Put a message into the line; False if it was suppressed as a duplicate."""
        entry = self.gate.enter()
        try:
            self.gate.refuse_if_shut()
            return await self._publish(message, repeat_of)
        except RedisMessageQueueError as error:
            error.locate(self.options.name, "publish")
            raise
        finally:
            self.gate.leave(entry)

    async def drain(self, timeout: float | None) -> bool:
        """End this object's work; whether nothing is under way or in doubt any more."""
        number("timeout", timeout, optional=True, least=0)
        if await drain(self, timeout):
            self.is_drained = True
            return True
        return False

    async def _publish(self, message: str | dict[str, Any], repeat_of: PublishNotConfirmedError | None) -> bool:
        payload = self._rules.encode(message)
        publisher = self.store.publisher
        if repeat_of is None:
            message_id = self.port.fresh_id()
            marker = await self._marker(message) if self.options.deduplication else None
            publishing = publisher.publish(message_id, payload, marker, self.is_stopped)
        else:
            message_id, publishing = publisher.repeat(repeat_of, payload)
        started = self.port.now() if self.teller.wanted else 0.0
        try:
            published = await publishing
        except Exception as error:
            for dropped in error.dropped if isinstance(error, PublishNotConfirmedError) else ():
                await self.teller.tell(EventOperation.DROPPED, message_id=dropped)
            await self.teller.tell(
                EventOperation.PUBLISH, EventOutcome.FAILURE, message_id=message_id.hex(), error=uncarried(error)
            )
            raise
        if self.teller.wanted:
            message_id = published.message_id or message_id
            details: dict[str, Any] = {"message_id": message_id.hex(), "duration_seconds": self.port.now() - started}
            for dropped in published.dropped:
                await self.teller.tell(EventOperation.DROPPED, message_id=dropped)
            if published.accepted:
                await self.teller.tell(EventOperation.PUBLISH, **details)
            else:
                await self.teller.tell(EventOperation.PUBLISH_DEDUP_HIT, EventOutcome.SKIPPED, **details)
        return published.accepted

    async def _marker(self, message: str | dict[str, Any]) -> str:
        """The key under which a repetition of this message is recognised."""
        function = self.options.get_deduplication_key
        if function is None:
            return self.store.keys.deduplication(content_key(message))
        answer = await self.port.ask(function, message)
        key = answer.unwrap()
        if key is None or key == "":
            raise ConfigurationError(
                f"get_deduplication_key returned {key!r}; return a non-empty str that names this message, "
                "or every message without one would count as a duplicate of the others",
            )
        if not isinstance(key, str):
            raise PayloadTypeError(
                f"get_deduplication_key must return a str, not {type(key).__name__}; format it first",
            )
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise PayloadValueError(
                f"get_deduplication_key returned a lone surrogate at position {error.start}, which UTF-8 cannot carry",
            ) from None
        return self.store.keys.deduplication(key)
