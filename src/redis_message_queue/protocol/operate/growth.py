"""The number of partitions of a queue: how it is read, checked and grown."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from redis_message_queue.options.declared import check_partitions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.operate.pages import PageReader, refuse_other_count
from redis_message_queue.protocol.operate.pause import Pauser
from redis_message_queue.protocol.parts import Parts
from redis_message_queue.protocol.shared_state import grow_partition, share_state
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored.keys import QueueKeys, partition_keys, refuse_one_slot
from redis_message_queue.values.errors import ConfigurationError, PartitionCountError

log = logging.getLogger("redis_message_queue")


async def stored_partitions(calls: Calls, keys: QueueKeys | None = None) -> int | None:
    """Return how many partitions the queue of these keys has in Redis; None if there is no such queue."""
    counted = (keys or calls.keys).counted
    (found,) = await calls.pipeline(counted, (("HMGET", counted, "partitions"),), "look")
    number = found[0]
    return int(number) if number is not None and number.isdigit() else None


async def check_partition_count(calls: Calls, count: int) -> None:
    """Raise if the queue has another number of partitions."""
    (found,) = await calls.pipeline(calls.keys.counted, (("HMGET", calls.keys.counted, "partitions"),), "look")
    refuse_other_count(found[0], count)


async def finish_growth(others: Sequence[Calls]) -> None:
    """Give the number of the first partition to others that have a smaller one: it has grown, and they have not yet."""
    for calls in others:
        found = await stored_partitions(calls)
        if found is not None and found < calls.partitions:
            await calls.write_state()


class Grower:
    """Gives a queue more partitions."""

    def __init__(self, store: Store, *, is_whole: bool) -> None:
        self._store = store
        self._is_whole = is_whole

    @property
    def _own(self) -> QueueKeys:
        return QueueKeys.unchecked(self._store.keys.prefix, separator=self._store.keys.separator)

    async def grow(self, count: Any) -> int:
        """Give the queue more partitions. Returns how many it had. If it is interrupted, it can be repeated.

        The new partitions get what belongs to the queue. Then the first partition gets the number: from then on nobody
        can begin with the old one. Last come the others, which a client with the new number would bring along, too.
        """
        check_partitions("partitions", count)
        before = await self._largest()
        self._refuse(before, count)
        if before is None or count == 1:
            return 1
        parts = self._parts(count)
        first = self._own if before == 1 else partition_keys(self._own, 0, before)
        try:
            for part in parts[before:]:
                await share_state(part.calls, first)
            await _grow_first(parts[0].calls)
            for part in parts[1:]:
                await part.calls.write_state()
        except PartitionCountError:
            self._refuse(await self._largest(), count)  # another operator has given it more
            raise
        if before != count:
            log.warning(
                "%s: the queue has grown from %d to %d partitions; objects with another number are refused from now on",
                *(self._store.keys.prefix, before, count),
            )
        return before

    async def pausers(self) -> list[Pauser]:
        """Return what pauses each partition of a queue that has grown meanwhile."""
        return [Pauser(one.calls, PageReader(one.calls)) for one in self._parts(await self._largest() or 1)]

    def _parts(self, count: int) -> Parts:
        return Parts.of(self._store.calls.port, self._own, self._store.options, count)

    async def _largest(self) -> int | None:
        """Return how many partitions the queue has: the largest number that any of them knows.

        After a failover to older state the first one may know an older number. One that was once larger counts.
        """
        calls = self._store.calls
        largest, number = await stored_partitions(calls), 1
        while number < max(largest or 0, 2):
            found = await stored_partitions(calls, partition_keys(self._own, number, 1))
            largest, number = max(largest or 0, found or 0) or None, number + 1
        return largest

    def _refuse(self, before: int | None, count: int) -> None:
        keys, options = self._store.keys, self._store.options
        if not self._is_whole:
            raise ConfigurationError("this is a partition of a queue; grow the queue itself")
        if before is None:
            raise ConfigurationError(
                f"there is no queue {keys.prefix!r} to grow; the first use of a queue object stores its number of "
                "partitions"
            )
        if count < before:
            raise ConfigurationError(
                f"partitions must be at least {before}, which the queue has already, not {count}: the messages of a "
                "partition that is taken away would have no consumer"
            )
        if count > 1 and options.dead_letter_queue is not None:
            raise ConfigurationError("a queue with its own dead_letter_queue cannot have partitions")
        if count > 1 and self._store.calls.port.is_cluster:
            refuse_one_slot(keys.prefix)


async def _grow_first(calls: Calls) -> None:
    """Give the first partition the number of these calls; one without a number gets it when it is opened."""
    while (found := await stored_partitions(calls)) is not None and found != calls.partitions:
        try:
            await grow_partition(calls, found)
        except PartitionCountError:
            if (await stored_partitions(calls) or 0) > calls.partitions:
                raise
