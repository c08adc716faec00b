"""A queue with partitions: ordinary queues behind one object, which is used as if it were one of them."""

from __future__ import annotations

from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.handoff import HandOff
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.operate.growth import check_count, finish_growth
from redis_message_queue.protocol.partitioned_store import PartitionedStore
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.scheduler import Scheduler
from redis_message_queue.protocol.schedules import PartScheduler
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import ConfigurationError


class PartitionedQueue(QueueProtocol):
    """Consumes from all partitions with one store, and publishes to one of them at a time."""

    store: PartitionedStore

    def __init__(
        self, options: QueueOptions, store: PartitionedStore, message_class: type[ReceivedMessage] = ReceivedMessage
    ) -> None:
        super().__init__(options, store, message_class)
        self._parts = tuple(QueueProtocol(options, one, message_class) for one in store.partitions)
        self._has_grown = False  # whether all partitions are known to have this number
        self.scheduler = Scheduler(
            [PartScheduler(part.store, part.builder, self.publisher, self.gate) for part in self._parts]
        )

    @property
    def parts(self) -> tuple[QueueProtocol, ...]:
        return self._parts

    @property
    def keys(self) -> QueueKeys:
        raise ConfigurationError(
            f"the queue {self.options.name!r} has {len(self._parts)} partitions, each with its own keys; use "
            f"queue.partition(number).key, with a number from 0 to {len(self._parts) - 1}"
        )

    async def _check_count(self) -> None:
        """Raise if the queue has another number of partitions; bring along those that a growth has not come to."""
        first, *others = [one.store.calls for one in self._parts]
        await check_count(first, len(self._parts))
        if not self._has_grown:
            await finish_growth(others)
            self._has_grown = True

    def hand_off_of(self, claim: Claim) -> HandOff:
        return HandOff(self._parts[claim.partition])
