"""The streaming source: the offset of a micro-batch is the number of a sealed batch, which a replay reads again.

In a queue with partitions it is the number of a sealed batch of each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from redis_message_queue.spark.connection import WHOLE, Partition, RedisReader
from redis_message_queue.spark.consumer_group import (
    Batches,
    BatchSize,
    ConsumerGroup,
    GroupPart,
    LeaseRenewal,
    split_members,
)
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.values.errors import DataLossError, RedisMessageQueueError
from redis_message_queue.values.plain_values import class_name

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_message_queue.spark.rows import RowEncoder

log = logging.getLogger("redis_message_queue")

_REPORT_SECONDS = 10.0  # for which a lag is shown again if nothing was claimed: Spark asks once a second
_BATCH, _BATCHES = "batch", "batches"  # the one field of an offset: a number, or with partitions one for each

Offset = dict[str, Any]


def batches_of(offset: Offset) -> Batches:
    """Return the last batch of each partition that an offset includes. Of partitions that it does not name: none."""
    return list(offset[_BATCHES]) if _BATCHES in offset else [offset[_BATCH]]


def offset_of(batches: Batches) -> Offset:
    """Return the offset after these batches, one of each partition."""
    return {_BATCHES: batches} if len(batches) > 1 else {_BATCH: batches[0]}


@dataclass(frozen=True)
class BatchSlice(InputPartition):
    """The places of one batch that one task reads."""

    batch: int
    start: int
    stop: int
    partition: Partition = WHOLE


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of one queue for one consumer group.

    Making a reader has no effects: Spark makes a second one only to pickle it. The first call that needs the group
    acquires it; after a crash that may be `partitions`.
    """

    # Set only in the process on the driver that Spark asks for offsets. A list has a number for each partition.
    _connected: ConsumerGroup | None = None
    _renewal: LeaseRenewal | None = None
    _left: list[int] | None = None  # how many messages an AvailableNow query may still read
    _known: Batches | None = None  # the last batches that this run has found, or was asked for by the checkpoint
    _replayed = 0  # messages of the latter
    _is_idle = False  # whether the last look found nothing
    _reported: tuple[float, int, dict[str, Any]] | None = None  # when, after how many claimed messages, and what

    def __init__(self, options: SourceOptions, rows: RowEncoder) -> None:
        self._options = options
        self._rows = rows

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what executors do not need: they only read."""
        drivers = {"_connected", "_renewal", "_left", "_known", "_reported"}
        return {name: value for name, value in vars(self).items() if name not in drivers}

    # -- on the driver

    def initialOffset(self) -> Offset:
        """Return where a query without a checkpoint starts: after what is acked, before what a dead query had sealed.

        Spark asks again when it replays the first batch. Nothing is acked before that is done.
        """
        return offset_of(self._acquired([0]).acked)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and nothing that is published later."""
        self._left = self._group.depths()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the next batches: those that Spark has not seen yet, or new ones, or `start` if there is nothing."""
        committed = batches_of(start)
        group = self._acquired(committed)
        committed = self._fitting(group, committed)
        found = self._next_batches(group, committed, limit)
        self._known = [*map(max, self._known or found, found)]
        return start if found == committed else offset_of(found)

    def _next_batches(self, group: ConsumerGroup, committed: Batches, limit: ReadLimit) -> Batches:
        self._ack(group, committed)
        if group.sealed != committed:
            return [number + (number < sealed) for number, sealed in zip(committed, group.sealed, strict=True)]
        sealed = self._new_batches(group, limit)
        if self._left is not None and sealed == committed:
            self._release_lease()
        return sealed

    def _new_batches(self, group: ConsumerGroup, limit: ReadLimit) -> Batches:
        """Fill and seal the next batches."""
        wanted, before = self._wanted(group, limit), [one.counts.claimed for one in group.parts]
        if wanted <= 0:
            return group.sealed
        # With the default trigger Spark asks 80 times a second. An idle query waits first, and looks once a second.
        waits = self._left is None
        if waits and self._is_idle:
            group.wait_for_wakeup()
        filled = group.fill_batches(wanted, self._left)
        if waits and not filled and not self._is_idle:
            group.wait_for_wakeup()
            filled = group.fill_batches(wanted)
        self._is_idle = not filled
        if self._left is not None:
            now = [one.counts.claimed for one in group.parts]
            taken = [end - start for start, end in zip(before, now, strict=True)]
            # If there was none, others have taken the rest.
            self._left = [left - some if any(taken) else 0 for left, some in zip(self._left, taken, strict=True)]
        return group.seal_batches() if filled else group.sealed

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what the progress shows: the lag, and what this run has done: see `StreamProgress`.

        A server that is briefly away does not end the query.
        """
        claimed, now = self._group.counts.claimed, time.monotonic()
        if self._is_idle and self._reported is not None:
            at, claimed_then, report = self._reported
            if claimed_then == claimed and now - at < _REPORT_SECONDS:
                return report
        try:
            lag, oldest = self._group.depth_and_age()
        except RedisMessageQueueError as error:
            log.warning("%s: the lag of the query could not be read (%s)", self._options.queue, class_name(error))
            return None
        report = {
            _BATCH: sum(self._group.sealed),
            "queue": self._options.queue,
            "consumer_group": self._options.consumer_group,
            "replayed": self._replayed,
            **asdict(self._group.counts),
            "lag": lag,
            "oldest_seconds": oldest,
        }
        self._reported = now, claimed, report
        return report

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the batches after `start` in slices. After a crash this is the first call, with the same batches.

        The slices are those that were stored with each batch, empty ones included: Spark numbers them.
        """
        group = self._acquired(batches_of(end))
        first, last = (self._fitting(group, batches_of(one)) for one in (start, end))
        self._ack(group, first)
        slices: list[BatchSlice] = []
        for place, one in enumerate(group.parts):
            found = self._batches(one, first[place], last[place])
            self._count_replayed(group, place, found)
            for number, batch in found.items():
                slices += [BatchSlice(number, begin, stop, one.partition) for begin, stop in batch.edges]
        return slices

    def _batches(self, one: GroupPart, first: int, last: int) -> dict[int, BatchSize]:
        """Return the batches of a partition after one number up to another, without those that are lost."""
        batches = {number: one.batch(number) for number in range(first + 1, last + 1)}
        state = one.state()
        lost = [number for number, batch in batches.items() if batch is None or number <= state.released]
        if lost or last < first:
            self._report_data_loss(_why_gone(one, lost[0] if lost else last, state.sealed, state.released))
        return {number: batch for number, batch in batches.items() if batch and number not in lost}

    def _count_replayed(self, group: ConsumerGroup, place: int, batches: dict[int, BatchSize]) -> None:
        """Count batches that this run did not find itself, each once: Spark may plan one more than once."""
        self._known = self._known or [0] * len(group.parts)
        self._replayed += sum(batch.messages for number, batch in batches.items() if number > self._known[place])
        self._known[place] = max(self._known[place], *batches, 0)

    def commit(self, end: Offset) -> None:
        """Ack everything up to here: Spark is done with it."""
        group = self._acquired(batches_of(end))
        self._ack(group, self._fitting(group, batches_of(end)))

    def stop(self) -> None:
        """Release the group. Spark calls this on failure and when the driver is gone, not on a normal end."""
        self._release_lease()
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    # -- on the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a slice. Reading changes nothing, so a task may be repeated."""
        assert isinstance(partition, BatchSlice)
        client = self._options.connect()
        group = GroupPart(client, self._options, RedisReader(client, self._options.keys, partition.partition))
        try:
            found = 0
            for members in group.read_pages(partition.batch, partition.start, partition.stop):
                found += len(members)
                yield self._rows.batch(*split_members(members))
        finally:
            group.close()
        if found != partition.stop - partition.start:
            named, expected = _named(group, partition.batch), partition.stop - partition.start
            self._report_data_loss(
                f"{named} should have {expected:,} messages from index {partition.start:,}, but {found:,} are there"
            )

    # -- the consumer group

    @property
    def _group(self) -> ConsumerGroup:
        return self._connect([0])

    def _connect(self, known: Batches) -> ConsumerGroup:
        """Return the group. If Redis does not know the queue, it has as many partitions as the checkpoint."""
        if self._connected is None:
            self._connected = ConsumerGroup.open(self._options.connect(), self._options, len(known))
        return self._connected

    def _acquired(self, known: Batches) -> ConsumerGroup:
        """Return the group. The first call of a run acquires it and recovers what the run before has left."""
        group = self._connect(known)
        if self._renewal is None:
            group.acquire_group()
            self._renewal = LeaseRenewal(group)
            group.recover()
        if self._renewal.lost is not None:
            raise type(self._renewal.lost)(str(self._renewal.lost), queue=self._options.queue)
        return group

    def _fitting(self, group: ConsumerGroup, batches: Batches) -> Batches:
        """Return a number for each partition: none of a partition that the queue has got since."""
        count = len(group.parts)
        if any(batches[count:]):
            self._report_data_loss(
                f"the checkpoint has batches of {len(batches)} partitions, and the queue has {count}; the server was "
                "emptied or restored, or the checkpoint belongs to another queue"
            )
        return [*batches, *[0] * (count - len(batches))][:count]

    def _release_lease(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None
            try:
                self._group.release_lease()
            except Exception as error:
                log.warning(
                    "%s: the lease of consumer group %s was not released (%s); it ends after %g s",
                    self._options.queue,
                    self._options.consumer_group,
                    class_name(error),
                    self._options.lease_seconds,
                )

    def _ack(self, group: ConsumerGroup, batches: Batches) -> None:
        for one, number in zip(group.parts, batches, strict=True):
            if number > one.sealed:
                self._report_data_loss(_why_gone(one, number, one.sealed, 0))
                one.skip_to(number)
            one.ack_batch(number)

    def _wanted(self, group: ConsumerGroup, limit: ReadLimit) -> int:
        """Return how many messages the next batches may have."""
        if isinstance(limit, ReadMaxRows):
            wanted = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):  # a trigger that runs once: what is there now
            wanted = sum(group.depths())
        else:
            wanted = self._options.max_messages_per_trigger
        return wanted if self._left is None else min(wanted, sum(self._left))

    def _report_data_loss(self, what: str) -> None:
        """Raise, or only warn if the user wants to continue."""
        where = f"queue {self._options.queue!r}, consumerGroup {self._options.consumer_group!r}: {what}"
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{where}. Start with a new checkpoint, or set failOnDataLoss to false to continue without them.",
                queue=self._options.queue,
            )
        log.warning("messages are lost: %s", where)


def _named(group: GroupPart, number: int) -> str:
    return f"batch {number}" + (f" of partition {group.partition.number}" if group.partition.count > 1 else "")


def _why_gone(group: GroupPart, number: int, sealed: int, released: int) -> str:
    named = _named(group, number)
    if number > sealed:
        return (
            f"{named} is in the checkpoint but not in Redis, where the last batch is {sealed}; "
            "the server was emptied or restored, or the checkpoint belongs to another queue"
        )
    if number <= released:
        return f"an operator released {named}, and its messages went back to the queue"
    return f"{named} was acked before, and its messages are gone; the checkpoint is older than that"
