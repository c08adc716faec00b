"""The number of partitions of a queue: how it is read, checked and grown."""

from __future__ import annotations

import logging
from typing import Any

from redis_message_queue.errors import ConfigurationError
from redis_message_queue.keys import QueueKeys, refuse_one_slot
from redis_message_queue.options import check_partitions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.pages import refuse_other_count
from redis_message_queue.protocol.partitioned_store import partition_stores
from redis_message_queue.protocol.port import Command, Port
from redis_message_queue.protocol.store import Store
from redis_message_queue.scripts import script

log = logging.getLogger("redis_message_queue")


async def stored_partitions(calls: Calls) -> int | None:
    """Return how many partitions the queue of these keys has in Redis; None if there is no such queue."""
    (found,) = await calls.pipeline(calls.keys.counted, (("HMGET", calls.keys.counted, "partitions"),), "look")
    number = found[0]
    return int(number) if number is not None and number.isdigit() else None


async def check_count(calls: Calls, count: int) -> None:
    """Raise if the queue has another number of partitions."""
    (found,) = await calls.pipeline(calls.keys.counted, (("HMGET", calls.keys.counted, "partitions"),), "look")
    refuse_other_count(found[0], count)


class Grower:
    """Gives a queue more partitions."""

    def __init__(self, store: Store, *, is_whole: bool) -> None:
        self._store = store
        self._is_whole = is_whole

    async def grow(self, count: Any) -> int:
        """Give the queue more partitions. Returns how many it had. If it is interrupted, it can be repeated.

        The first partition comes first: from then on nobody can begin with the old number.
        """
        check_partitions("partitions", count)
        port, options, keys = self._store.calls.port, self._store.options, self._store.keys
        own = QueueKeys.unchecked(keys.prefix, separator=keys.separator)
        before = await stored_partitions(self._store.calls)
        self._refuse(port, before, count)
        if before is None or count == 1:
            return 1
        for store in partition_stores(port, own, options, count):
            await _grow_one(store.calls, count)
        if before != count:
            log.warning(
                "%s: the queue has grown from %d to %d partitions; objects with another number are refused from now on",
                *(keys.prefix, before, count),
            )
        return before

    def _refuse(self, port: Port, before: int | None, count: int) -> None:
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
        if count > 1 and port.is_cluster:
            refuse_one_slot(keys.prefix)


async def _grow_one(calls: Calls, count: int) -> None:
    keys = calls.keys
    found = await stored_partitions(calls)
    if found is None:
        await calls.write_state()
        return
    own = QueueKeys.unchecked(keys.prefix, separator=keys.separator)
    before = own.meta if found == 1 else own.partitioned_meta(found)
    command = Command(script("grow_partition"), (keys.counted, before, keys.meta))
    await calls.call(command, (found, count))
