"""The store of a queue with partitions: one ordinary store for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.capabilities import Capabilities
from redis_message_queue.protocol.consume.partitioned_claimer import PartitionedClaimer
from redis_message_queue.protocol.consume.partitioned_settler import PartitionedSettler
from redis_message_queue.protocol.port import Argument, Command, Port
from redis_message_queue.protocol.shared_state import grow_partition, read_shared_state, share_state
from redis_message_queue.protocol.store import RedisStore, Store
from redis_message_queue.stored.keys import QueueKeys, partition_keys, script_keys
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.errors import ConfigurationError, PartitionCountError

# How long a loop waits for one node of a cluster while it could serve others; less while another node is away, which
# may have this partition, too. A node that answers slowly gets more.
_PATIENCE_SECONDS, _LITTLE_PATIENCE_SECONDS = 0.5, 0.15
_SLOWER = 4  # times what the last answer took


class PartitionCalls(Calls):
    """The calls of one partition. Its state is written only if the queue has as many partitions as this client says."""

    def __init__(
        self, port: Port, keys: QueueKeys, options: GatewayOptions, count: int, first: PartitionCalls | None
    ) -> None:
        super().__init__(port, keys, options)
        self.partitions = count
        self._first = first  # the first partition, which the others ask; None in itself
        self._all: list[PartitionCalls] = [] if first is None else first._all
        self._all.append(self)
        self._answer_seconds = 0.0  # what the last answer to a claim took
        self._has_opened = False  # whether it took longer, because the partition was opened meanwhile
        names = script("open_queue").keys
        self._open = Command(script("open_queue"), script_keys(keys, names, counted=keys.counted))

    @property
    def patience(self) -> float | None:
        if not self.port.is_cluster:  # one server has all partitions
            return None
        is_one_away = any(one.away is not None for one in self._all if one is not self)
        patience = _LITTLE_PATIENCE_SECONDS if is_one_away else _PATIENCE_SECONDS
        return min(self.listening_seconds, max(patience, _SLOWER * self._answer_seconds))

    def has_answered(self, seconds: float = 0.0) -> None:
        super().has_answered()
        if seconds:
            self._answer_seconds = 0.0 if self._has_opened else seconds
            self._has_opened = False

    async def _open_queue(self, limit: float | None, drains: bool, field: str, weights: Sequence[Argument]) -> None:
        self._has_opened = True
        if self._first is not None:
            if self._first.away is not None and self._first.watchers:
                raise self._first.away  # a loop must not wait for it
            await self._first._open_queue(limit, drains, "", ())
            await self._follow_first(self._first, limit)
        try:
            await super()._open_queue(limit, drains, field, weights)
        except PartitionCountError:
            if self._first is None:
                raise
            # A client that had asked the first partition before it grew has opened this one since then.
            await self._follow_first(self._first, limit)
            await super()._open_queue(limit, drains, field, weights)

    async def _follow_first(self, first: PartitionCalls, limit: float | None) -> None:
        """Bring a partition to the number and the shared state of the first one, which has the number of this client.

        A growth that is under way, or was interrupted, has not come to it yet.
        """
        while True:
            own = await read_shared_state(self, self.keys, limit, fields=False)
            if own.partitions is None or own.partitions >= self.partitions:
                break
            with suppress(PartitionCountError):  # another client was faster
                await grow_partition(self, own.partitions, limit)
        if not own.is_open:
            await share_state(self, first.keys, limit)

    async def _register(self, limit: float | None) -> None:
        """The registry has one entry for all partitions, that of the first."""
        if self._first is None:
            await super()._register(limit)
        else:
            await self._first._register(limit)


@dataclass(frozen=True, slots=True)
class PartitionedCapabilities(Capabilities):
    """Which features work with partitions: all but being the target of a hand-off, which is one script."""

    def require(self, capability: str) -> None:
        if capability == "hand_off_target":
            raise ConfigurationError(
                "a queue with partitions cannot be a target of complete(): one script reaches one partition only; hand "
                "off to queue.partition(number), to a queue without partitions, or publish() before the handler returns"
            )
        Capabilities.require(self, capability)


class PartitionedStore(Store):
    """Sends, claims and settles the messages of all partitions. Its keys are those of the first."""

    def __init__(self, port: Port, partitions: Sequence[RedisStore]) -> None:
        self.partitions = tuple(partitions)
        first = self.partitions[0]
        super().__init__(
            port,
            first.keys,
            first.options,
            first.decodes,
            first.sender,
            PartitionedClaimer([one.part.claimer for one in partitions], [one.calls for one in partitions]),
            PartitionedSettler([one.part.settler for one in partitions], [one.calls for one in partitions]),
            PartitionedCapabilities(),
        )


def partition_stores(port: Port, keys: QueueKeys, options: GatewayOptions, count: int) -> list[RedisStore]:
    """Return the store of each partition of a queue whose own keys are these."""
    stores: list[RedisStore] = []
    first: PartitionCalls | None = None
    for number in range(count):
        own = partition_keys(keys, number, count)
        calls = PartitionCalls(port, own, options, count, first)
        first = first or calls
        stores.append(RedisStore(port, own, options, calls))
    return stores
