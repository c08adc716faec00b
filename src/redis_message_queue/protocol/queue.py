"""What a queue object does, sync or async."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.protocol.consume.batch_block import BatchBlock
from redis_message_queue.protocol.consume.message_block import MessageBlock
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.consume.settle import TerminalList
from redis_message_queue.protocol.drain import DrainGate, drain
from redis_message_queue.protocol.event_emitter import EventEmitter
from redis_message_queue.protocol.operate.growth import Grower, check_partition_count, finish_growth
from redis_message_queue.protocol.operate.operator import Operator
from redis_message_queue.protocol.operate.part_operator import PartOperator
from redis_message_queue.protocol.publish.message_builder import Message, MessageBuilder, PublishOverrides
from redis_message_queue.protocol.publish.publisher import Publisher
from redis_message_queue.protocol.scheduler import Scheduler
from redis_message_queue.protocol.schedules import PartScheduler
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.checks import number, whole_number
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.values.plain_values import brief


class QueueProtocol:
    """What a queue object does: it applies the user's options around what the store can do."""

    def __init__(
        self, options: QueueOptions, store: Store, message_class: type[ReceivedMessage[Any]] = ReceivedMessage
    ) -> None:
        options.check_beside(
            visibility_timeout_seconds=store.options.message_visibility_timeout_seconds,
            overload_policy=store.options.pending_overload_policy,
            message_ttl_seconds=store.options.message_ttl_seconds,
        )
        self.options = options
        self.store = store
        self.message_class = message_class
        self.port = store.port
        leased = store.options.message_visibility_timeout_seconds is not None
        self.emitter = EventEmitter(options.name, options.on_event, store.port, leased=leased)
        self.completed = self.failed = None
        if options.enable_completed_queue:
            self.completed = TerminalList("completed", options.max_completed_length)
        if options.enable_failed_queue:
            self.failed = TerminalList("failed", options.max_failed_length)
        self.dead_letters = TerminalList("dead_letters", store.options.max_dead_letter_length)
        self.is_drained = False
        self.gate = DrainGate(store.port.process, options.interrupt)
        self.is_stopped = self.gate.is_stopped  # whether consumers should take no fresh work
        self.builder = MessageBuilder(options, store)
        # It knows the parts, not the whole: a circle would keep the client's sockets open when the queue is gone.
        self.publisher = Publisher(store, self.builder, self.emitter, self.gate)
        parts = store.parts if len(store.parts) > 1 else ()
        self._partitions = tuple(QueueProtocol(options, store.only(part), message_class) for part in parts)
        self._has_grown = False  # whether all partitions are known to have this number
        stores = [part.store for part in self._partitions] or [store]
        self.scheduler = Scheduler([PartScheduler(one, self.builder, self.publisher, self.gate) for one in stores])

    def with_options(self, **changes: Any) -> Self:
        """Return the same queue with some options changed; it has the messages, but not the drain, of this one."""
        return type(self)(replace(self.options, **changes), self.store, self.message_class)

    @property
    def operator(self) -> Operator:
        """What an operator does with this queue; custom gateways refuse it."""
        operators = [PartOperator(one) for one in self.parts]
        first = self.parts[0].store
        grower = Grower(first, is_whole=len(self.parts) == first.calls.partitions)
        return Operator(operators, self._check_count, grower)

    async def _check_count(self) -> None:
        """Raise if the queue has another number of parts; bring along those that a growth has not come to.

        One part alone checks the number when it reads.
        """
        if not self._partitions:
            return
        first, *others = [part.calls for part in self.store.parts]
        await check_partition_count(first, len(self.store.parts))
        if not self._has_grown:
            await finish_growth(others)
            self._has_grown = True

    async def count_behind_retries(self) -> int:
        """Return how many messages wait behind a retry of their tenant, in a queue that keeps their order."""
        return sum([await PartOperator(part).reader.behind_retries() for part in self.parts])

    @property
    def parts(self) -> tuple[QueueProtocol, ...]:
        """A queue for each part; a queue without partitions is its own only part."""
        return self._partitions or (self,)

    def partition(self, number: Any) -> QueueProtocol:
        """Return one of the partitions."""
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigurationTypeError(f"number must be an int, not {type(number).__name__}")
        if not 0 <= number < len(self.parts):
            raise ConfigurationError(f"number must be from 0 to {len(self.parts) - 1}, not {brief(number)}")
        return self.parts[number]

    @property
    def keys(self) -> QueueKeys:
        """The names of the Redis keys; each partition has its own."""
        if self._partitions:
            raise ConfigurationError(
                f"the queue {self.options.name!r} has {len(self.parts)} partitions, each with its own keys; use "
                f"queue.partition(number).key, with a number from 0 to {len(self.parts) - 1}"
            )
        return self.store.keys

    def message_block(self) -> MessageBlock:
        """A block for one message, which is not yet claimed."""
        self.options.check_renewal(self.options.heartbeat_interval_seconds)
        return MessageBlock(self)

    def batch_block(self, max_messages: int, wait_seconds: float | None) -> BatchBlock:
        """A block for several messages, which are not yet claimed."""
        self.options.check_renewal(self.options.heartbeat_interval_seconds)
        return BatchBlock(self, max_messages, wait_seconds)

    @staticmethod
    def check_batch(max_messages: int, wait_seconds: float | None) -> None:
        """Raise for a size or a wait that cannot be used."""
        whole_number("max_messages", max_messages)
        if max_messages > MAX_MESSAGES:
            raise ConfigurationError(f"max_messages must be at most {MAX_MESSAGES:,}, not {brief(max_messages)}")
        number("wait_seconds", wait_seconds, optional=True, least=0)

    async def publish(self, message: Message, **details: Any) -> bool:
        """Add a message to the queue. Returns False if deduplication suppressed it."""
        return await self.publisher.publish(message, PublishOverrides(**details) if details else None)

    async def drain(self, timeout: float | None) -> bool:
        """End the work of this object. Returns whether nothing is under way or unconfirmed any more."""
        number("timeout", timeout, optional=True, least=0)
        if await drain(self, timeout):
            self.is_drained = True
            return True
        return False
