"""The consumer group of a streaming query in a queue with partitions: a group in each of them, used as one.

A queue without partitions has one part. Numbers of batches are lists, with a number for each partition.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import redis

from redis_message_queue.protocol.port import finish
from redis_message_queue.spark.connection import open_partitions
from redis_message_queue.spark.consumer_group import ConsumerGroup, RunCounts
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.values.errors import ConsumerGroupBusyError, ConsumerGroupLostError, DataLossError

_WAIT_SECONDS = 1.0  # the longest wait for a wake-up, which may be lost together with another consumer

Batches = list[int]


class PartitionedGroup:
    """The groups of one name in all partitions of a queue, over one client. The same query holds all of them."""

    def __init__(self, client: redis.Redis | redis.RedisCluster, options: SourceOptions, usual: int = 1) -> None:
        """Find the partitions: a queue that does not exist yet has the ``usual`` number, if the options say nothing."""
        self._client: Any = client
        self.queue, self.name, self.lease_seconds = options.queue, options.consumer_group, options.lease_seconds
        holder = os.urandom(12).hex()
        self.parts = [
            ConsumerGroup(client, options, reader, holder) for reader in open_partitions(client, options, usual)
        ]
        self._turn = 0  # which partition is filled first

    # -- the lease

    def acquire_group(self) -> None:
        """Become the holder in all partitions, in their order: of two queries one waits for the other at the first.

        Raises:
            ConsumerGroupBusyError: Another query keeps the group. Nothing is held then.
        """
        try:
            for one in self.parts:
                one.acquire_group()
        except ConsumerGroupBusyError:
            self.release_lease()
            raise

    def renew_lease(self) -> None:
        """Stay the holder. A partition that does not answer does not keep the others from being renewed.

        Raises:
            ConsumerGroupLostError: Another query has acquired the group.
            DataLossError: The group is gone from Redis.
        """
        failure: Exception | None = None
        for one in self.parts:
            try:
                one.renew_lease()
            except (ConsumerGroupLostError, DataLossError):
                raise
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def release_lease(self) -> None:
        """Let the next query start without waiting for the end of our lease."""
        for one in self.parts:
            one.release_lease()

    # -- batches

    @property
    def sealed(self) -> Batches:
        """The last sealed batch of each partition."""
        return [one.sealed for one in self.parts]

    @property
    def acked(self) -> Batches:
        """The last acked batch of each partition."""
        return [one.acked for one in self.parts]

    @property
    def counts(self) -> RunCounts:
        """What this run has done with all partitions."""
        return RunCounts(*map(sum, zip(*(astuple(one.counts) for one in self.parts), strict=True)))

    def recover(self) -> None:
        """Finish what the holder before us began, and seal its open batches."""
        for one in self.parts:
            one.recover()

    def fill_batches(self, wanted: int, most: Sequence[int] | None = None) -> int:
        """Fill the open batches up to ``wanted`` messages together, and each up to ``most``. Returns their number.

        The partitions get equal shares, and what one of them does not use goes to the others. Each is the first in
        turn, so that a small batch does not always come from the same.
        """
        count = len(self.parts)
        self._turn = (self._turn + 1) % count
        lengths, limits = [0] * count, list(most or [wanted] * count)
        hungry = [(self._turn + place) % count for place in range(count)]
        while hungry and (room := wanted - sum(lengths)) > 0:
            share = max(1, room // len(hungry))
            for place in hungry[:]:
                room = wanted - sum(lengths)
                limit = min(limits[place], lengths[place] + min(share, max(0, room)))
                lengths[place] = self.parts[place].fill_batch(limit) if limit > lengths[place] else lengths[place]
                if lengths[place] < limit or limit == limits[place]:
                    hungry.remove(place)
        return sum(lengths)

    def seal_batches(self) -> Batches:
        """Make the open batches offsets, unless they are empty. Returns the last sealed batch of each partition."""
        return [one.seal_batch() for one in self.parts]

    # -- reading

    def depths(self) -> list[int]:
        """Return how many messages could be claimed now from each partition."""
        return [one.depth() for one in self.parts]

    def depth_and_age(self) -> tuple[int, float | None]:
        """Return how many messages are pending, and the age of the oldest in seconds."""
        depths, ages = zip(*(one.depth_and_age() for one in self.parts), strict=True)
        return sum(depths), max((age for age in ages if age is not None), default=None)

    def wait_for_wakeup(self) -> None:
        """Wait until a publish into any partition wakes us, or for a second.

        Then fill the batches: a wake-up is meant for one consumer.
        """
        port, wakeups = self.parts[0].port, tuple(one.keys.wakeup for one in self.parts)
        seconds = min(_WAIT_SECONDS, 0.8 * port.socket_timeout) if port.socket_timeout else _WAIT_SECONDS
        try:
            finish(port.wait_any(wakeups, seconds) if len(wakeups) > 1 else port.wait(wakeups[0], seconds))
        except Exception as error:
            if not port.is_transient(error):
                raise
            time.sleep(min(seconds, 0.1))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
