"""The store of a queue with partitions: one ordinary store for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis_message_queue.errors import ConfigurationError
from redis_message_queue.keys import QueueKeys, partition_keys, script_keys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.capabilities import Capabilities
from redis_message_queue.protocol.partitioned_claimer import PartitionedClaimer
from redis_message_queue.protocol.partitioned_settler import PartitionedSettler
from redis_message_queue.protocol.port import Argument, Command, Port
from redis_message_queue.protocol.store import RedisStore, Store
from redis_message_queue.scripts import script


class PartitionCalls(Calls):
    """The calls of one partition. Its state is written only if the queue has as many partitions as this client says."""

    def __init__(
        self, port: Port, keys: QueueKeys, options: GatewayOptions, count: int, first: PartitionCalls | None
    ) -> None:
        super().__init__(port, keys, options)
        self.partitions = count
        self._first = first  # the first partition, which the others ask; None in itself
        names = script("open_queue").keys
        self._open = Command(script("open_queue"), script_keys(keys, names, counted=keys.counted))

    async def _open_queue(self, limit: float | None, drains: bool, field: str, weights: Sequence[Argument]) -> None:
        if self._first is not None:
            await self._first._open_queue(limit, drains, "", ())
        await super()._open_queue(limit, drains, field, weights)

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
            PartitionedClaimer([one.claimer for one in partitions], [one.calls for one in partitions]),
            PartitionedSettler([one.settler for one in partitions], [one.keys for one in partitions]),
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
