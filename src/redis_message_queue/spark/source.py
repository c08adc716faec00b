"""The streaming source: the offset of a micro-batch is the number of a sealed batch, which a replay reads again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from redis_message_queue.errors import DataLossError, RedisMessageQueueError
from redis_message_queue.spark.consumer_group import ConsumerGroup, LeaseRenewal, split_members
from redis_message_queue.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_message_queue.spark.rows import RowEncoder

log = logging.getLogger("redis_message_queue")

_ROWS_A_TASK = 25_000  # unless minPartitions says otherwise: a task costs some 50 ms by itself
_BATCH = "batch"  # the one field of an offset

Offset = dict[str, int]


@dataclass(frozen=True)
class BatchSlice(InputPartition):
    """The messages of one batch that one task reads."""

    batch: int
    start: int
    stop: int


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of one queue for one consumer group.

    Making a reader has no effects: Spark makes a second one only to pickle it. The first call that needs the group
    acquires it; after a crash that may be `partitions`.
    """

    # Set only in the process on the driver that Spark asks for offsets.
    _connected: ConsumerGroup | None = None
    _renewal: LeaseRenewal | None = None
    _left: int | None = None  # how many messages an AvailableNow query may still read
    _offered = 0  # the last batch that this run has found by itself
    _replayed_upto = 0  # the last batch that Spark has asked for by its checkpoint
    _replayed = 0  # messages

    def __init__(self, options: SourceOptions, rows: RowEncoder) -> None:
        self._options = options
        self._rows = rows

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what executors do not need: they only read."""
        return {name: value for name, value in vars(self).items() if name not in ("_connected", "_renewal", "_left")}

    # -- on the driver

    def initialOffset(self) -> Offset:
        """Return where a query without a checkpoint starts: after what is acked, before what a dead query had sealed.

        Spark asks again when it replays the first batch. Nothing is acked before that is done.
        """
        return {_BATCH: self._acquired().acked}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and nothing that is published later."""
        self._left = self._group.depth()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the next batch: one that Spark has not seen yet, or a new one, or `start` if there is nothing."""
        self._offered = self._next_batch(start[_BATCH], limit)
        return {_BATCH: self._offered}

    def _next_batch(self, committed: int, limit: ReadLimit) -> int:
        group = self._acquired()
        self._ack(group, committed)
        if group.sealed > committed:
            return committed + 1
        wanted = self._wanted(group, limit)
        if wanted > 0 and not group.fill_batch(wanted) and self._left is None:
            # With the default trigger Spark asks 80 times a second.
            group.wait_for_wakeup()
            group.fill_batch(wanted)
        sealed = group.seal_batch()
        if self._left is not None:
            size = (group.batch_size(sealed) or 0) if sealed > committed else 0
            self._left = self._left - size if size else 0
            if not size:
                self._release_lease()
        return sealed

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what the progress shows: the lag, and what this run has done: see `StreamProgress`.

        A server that is briefly away does not end the query.
        """
        try:
            lag, oldest = self._group.depth_and_age()
        except RedisMessageQueueError as error:
            log.warning("%s: the lag of the query could not be read (%s)", self._options.queue, type(error).__name__)
            return None
        return {
            _BATCH: self._group.sealed,
            "queue": self._options.queue,
            "consumer_group": self._options.consumer_group,
            "replayed": self._replayed,
            **asdict(self._group.counts),
            "lag": lag,
            "oldest_seconds": oldest,
        }

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the batches after `start` in slices. After a crash this is the first call, with the same batches."""
        group = self._acquired()
        self._ack(group, start[_BATCH])
        sizes = {number: group.batch_size(number) for number in range(start[_BATCH] + 1, end[_BATCH] + 1)}
        state = group.state()
        lost = [number for number, size in sizes.items() if size is None or number <= state.released]
        if lost or end[_BATCH] < start[_BATCH]:
            self._report_data_loss(_why_gone(lost[0] if lost else end[_BATCH], state.sealed, state.released))
        kept = {number: size for number, size in sizes.items() if size and number not in lost}
        self._count_replayed(kept)
        return split(kept, self._options.min_partitions)

    def _count_replayed(self, sizes: dict[int, int]) -> None:
        """Count batches that this run did not find itself, each once: Spark may plan one more than once."""
        known = max(self._offered, self._replayed_upto)
        self._replayed += sum(size for number, size in sizes.items() if number > known)
        self._replayed_upto = max(known, *sizes, 0)

    def commit(self, end: Offset) -> None:
        """Ack everything up to here: Spark is done with it."""
        self._ack(self._acquired(), end[_BATCH])

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
        group = ConsumerGroup(self._options.connect(), self._options)
        try:
            found = 0
            for members in group.read_pages(partition.batch, partition.start, partition.stop):
                found += len(members)
                yield self._rows.batch(*split_members(members))
        finally:
            group.close()
        if found != partition.stop - partition.start:
            self._report_data_loss(
                f"batch {partition.batch} should have {partition.stop - partition.start:,} messages from index "
                f"{partition.start:,}, but {found:,} are there"
            )

    # -- the consumer group

    @property
    def _group(self) -> ConsumerGroup:
        if self._connected is None:
            self._connected = ConsumerGroup(self._options.connect(), self._options)
        return self._connected

    def _acquired(self) -> ConsumerGroup:
        """Return the group. The first call of a run acquires it and recovers what the run before has left."""
        group = self._group
        if self._renewal is None:
            group.acquire_group()
            self._renewal = LeaseRenewal(group)
            group.recover()
        if self._renewal.lost is not None:
            raise type(self._renewal.lost)(str(self._renewal.lost), queue=self._options.queue)
        return group

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
                    type(error).__name__,
                    self._options.lease_seconds,
                )

    def _ack(self, group: ConsumerGroup, number: int) -> None:
        if number > group.sealed:
            self._report_data_loss(_why_gone(number, group.sealed, 0))
            group.skip_to(number)
        group.ack_batch(number)

    def _wanted(self, group: ConsumerGroup, limit: ReadLimit) -> int:
        """Return how many messages the next batch may have."""
        if isinstance(limit, ReadMaxRows):
            wanted = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):  # a trigger that runs once: what is there now
            wanted = group.depth()
        else:
            wanted = self._options.max_messages_per_trigger
        return wanted if self._left is None else min(wanted, self._left)

    def _report_data_loss(self, what: str) -> None:
        """Raise, or only warn if the user wants to continue."""
        where = f"queue {self._options.queue!r}, consumerGroup {self._options.consumer_group!r}: {what}"
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{where}. Start with a new checkpoint, or set failOnDataLoss to false to continue without them.",
                queue=self._options.queue,
            )
        log.warning("messages are lost: %s", where)


def split(sizes: dict[int, int], wanted: int | None) -> list[BatchSlice]:
    """Return the batches in slices of equal length, or one message more: at least as many as wanted, if there are."""
    total = sum(sizes.values())
    count = max(wanted or 1, -(-total // _ROWS_A_TASK))
    slices: list[BatchSlice] = []
    for number, size in sizes.items():
        parts = min(size, -(-count * size // total))
        edges = [size * place // parts for place in range(parts + 1)]
        slices += [BatchSlice(number, start, stop) for start, stop in pairwise(edges)]
    return slices


def _why_gone(number: int, sealed: int, released: int) -> str:
    if number > sealed:
        return (
            f"batch {number} is in the checkpoint but not in Redis, where the last batch is {sealed}; "
            "the server was emptied or restored, or the checkpoint belongs to another queue"
        )
    if number <= released:
        return f"an operator released batch {number}, and its messages went back to the queue"
    return f"batch {number} was acked before, and its messages are gone; the checkpoint is older than that"
