"""What a queue object does, in either colour."""

from __future__ import annotations

from typing import Any

from redis_message_queue.checks import number, whole_number
from redis_message_queue.errors import ConfigurationError, PublishNotConfirmedError
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.options import QueueOptions
from redis_message_queue.protocol.batch import BatchDelivery
from redis_message_queue.protocol.delivery import Delivery
from redis_message_queue.protocol.drain import Gate, drain
from redis_message_queue.protocol.handoff import HandOff
from redis_message_queue.protocol.operator import Operator
from redis_message_queue.protocol.outbox import Message, Outbox
from redis_message_queue.protocol.settle import Keep
from redis_message_queue.protocol.store import Store
from redis_message_queue.protocol.tell import Teller

_LARGEST_BATCH = 1_000  # what one script may claim


class QueueProtocol:
    """Publishing and delivering, with the user's rules around the store's verbs."""

    def __init__(
        self, options: QueueOptions, store: Store, message_class: type[ReceivedMessage] = ReceivedMessage
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
        self.teller = Teller(options.name, options.on_event, store.port, leased=leased)
        keys = store.keys
        self.completed = self.failed = None
        if options.enable_completed_queue:
            self.completed = Keep(keys.completed, keys.records("completed"), options.max_completed_length)
        if options.enable_failed_queue:
            self.failed = Keep(keys.failed, keys.records("failed"), options.max_failed_length)
        self.dead_letters = Keep(keys.dead_letter, keys.records("dlq"), store.options.max_dead_letter_length)
        self.is_drained = False
        self.gate = Gate(store.port.process, options.interrupt)
        self.is_stopped = self.gate.is_stopped  # whether consumers should take no fresh work
        # It knows the parts, not the whole: a circle would keep the client's sockets open when the queue is gone.
        self.outbox = Outbox(options, store, self.teller, self.gate)

    @property
    def operator(self) -> Operator:
        """What an operator does with this queue; custom gateways refuse it."""
        return Operator(self)

    @property
    def hand_off(self) -> HandOff:
        """How messages of this queue become messages of others; custom gateways refuse it."""
        return HandOff(self)

    def delivery(self) -> Delivery:
        """A way to at most one message, not yet begun."""
        return Delivery(self)

    def batch(self, max_messages: int, wait_seconds: float | None) -> BatchDelivery:
        """A way to several messages at once, not yet begun."""
        self.check_batch(max_messages, wait_seconds)
        return BatchDelivery(self, max_messages, wait_seconds)

    @staticmethod
    def check_batch(max_messages: int, wait_seconds: float | None) -> None:
        """Raise for a size or a wait that cannot be."""
        whole_number("max_messages", max_messages)
        if max_messages > _LARGEST_BATCH:
            raise ConfigurationError(f"max_messages must be at most {_LARGEST_BATCH:,}, not {max_messages}")
        number("wait_seconds", wait_seconds, optional=True, least=0)

    async def publish(
        self, message: Message, repeat_of: PublishNotConfirmedError | None = None, **details: Any
    ) -> bool:
        """Put a message into its line; False if it was suppressed as a duplicate."""
        return await self.outbox.publish(message, repeat_of=repeat_of, **details)

    async def drain(self, timeout: float | None) -> bool:
        """End this object's work; whether nothing is under way or in doubt any more."""
        number("timeout", timeout, optional=True, least=0)
        if await drain(self, timeout):
            self.is_drained = True
            return True
        return False
