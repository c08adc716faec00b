"""The streaming source: the offset of a micro-batch is the number of a claim, so a replay reads the same messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from redis_message_queue.errors import ConsumerGroupLostError, DataLossError, RedisMessageQueueError
from redis_message_queue.spark.groups import Groups, Renewal, Rules, check_name
from redis_message_queue.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("redis_message_queue")

_PAGE = 5_000  # messages in one LRANGE and one Arrow batch
_ROWS_A_TASK = 25_000  # where the options name no number of partitions: a task costs some 50 ms by itself
_NUMBER = "number"


class Rows(Protocol):
    """Makes an Arrow batch of stored messages; it travels to the executors."""

    def batch(self, stored: Sequence[bytes], delivery_counts: Sequence[int]) -> pa.RecordBatch:
        """One row for each message."""


@dataclass(frozen=True)
class Part(InputPartition):
    """A stretch of one claim, read by one task."""

    number: int
    start: int
    stop: int


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of one queue's messages for one consumer group.

    Making one has no effects: Spark makes a second one only to pickle it. The group is taken over by whichever call
    comes first and needs it, which after a crash may be `partitions`.
    """

    # Only the process on the driver that Spark asks for offsets ever has these.
    _connected: Groups | None = None
    _renewal: Renewal | None = None
    _left: int | None = None  # how many messages an AvailableNow query may still take

    def __init__(self, options: SourceOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows
        self._rules = Rules(
            max_delivery_count=options.max_delivery_count,
            message_ttl_seconds=options.message_ttl_seconds,
            dead_letter_queue=options.dead_letter_queue,
            max_dead_letter_length=options.max_dead_letter_length,
            key_separator=options.key_separator,
            hash_tag=options.hash_tag,
        )
        # What is wrong with a name is told now, and not by the running query.
        self._rules.keys_of(options.queue, cluster=options.cluster)
        check_name(options.consumer_group, options.key_separator)

    def __getstate__(self) -> dict[str, Any]:
        """For the executors, which only read."""
        return {name: value for name, value in vars(self).items() if name not in ("_connected", "_renewal", "_left")}

    # -- on the driver

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint begins: behind what is handled, before what a dead query had claimed.

        Spark asks again when it replays the first batch. What is handled does not grow before that is done.
        """
        return {_NUMBER: self._held().acked}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """What waits now is read, and what comes later is not."""
        self._left = self._groups.depth()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The next claim: one that Spark has not seen yet, or a new one, or `start` if there is nothing."""
        groups = self._held()
        handled = start[_NUMBER]
        self._acknowledge(groups, handled)
        if groups.sealed > handled:
            return {_NUMBER: handled + 1}
        wanted = self._wanted(groups, limit)
        if wanted > 0 and not groups.gather(wanted) and self._left is None:
            # Spark asks 80 times a second where the trigger is the default one.
            groups.wait_for_work()
            groups.gather(wanted)
        sealed = groups.seal()
        if self._left is not None:
            taken = (groups.size(sealed) or 0) if sealed > handled else 0
            self._left = self._left - taken if taken else 0
            if not taken:
                self._leave()
        return {_NUMBER: sealed}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Depth and oldest age for the progress; a server that is away for a moment does not end the query for it."""
        try:
            depth, oldest = self._groups.oldest()
            return {_NUMBER: self._groups.sealed, "depth": depth, "oldest_seconds": oldest}
        except RedisMessageQueueError as error:
            log.warning("the depth of queue %s is unknown: %s", self._options.queue, type(error).__name__)
            return None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The claims behind `start` in stretches. After a crash this is the first call, and the very same claims."""
        groups = self._held()
        self._acknowledge(groups, start[_NUMBER])
        sizes = {number: groups.size(number) for number in range(start[_NUMBER] + 1, end[_NUMBER] + 1)}
        progress = groups.progress()
        lost = [number for number, size in sizes.items() if size is None or number <= progress.released]
        if lost or end[_NUMBER] < start[_NUMBER]:
            self._mourn(_why_gone(lost[0] if lost else end[_NUMBER], progress.sealed, progress.released))
        kept = {number: size for number, size in sizes.items() if size and number not in lost}
        return split(kept, self._options.min_partitions)

    def commit(self, end: dict[str, int]) -> None:
        """Spark is done with everything up to here."""
        self._acknowledge(self._held(), end[_NUMBER])

    def stop(self) -> None:
        """Called on failure and when the driver is gone; not on a normal end."""
        self._leave()
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    # -- on the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As often as it is asked: reading changes nothing."""
        assert isinstance(partition, Part)
        groups = self._connect()
        try:
            got = 0
            for at in range(partition.start, partition.stop, _PAGE):
                members = groups.read(partition.number, at, min(at + _PAGE, partition.stop))
                got += len(members)
                if members:
                    yield self._rows.batch(*opened(members))
        finally:
            groups.close()
        if got != partition.stop - partition.start:
            self._mourn(
                f"claim {partition.number} should have {partition.stop - partition.start:,} messages from place "
                f"{partition.start:,} on, and {got:,} are there"
            )

    # -- how it is done

    @property
    def _groups(self) -> Groups:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def _connect(self) -> Groups:
        one = self._options
        client = one.connect()
        return Groups(client, one.queue, one.consumer_group, lease_seconds=one.lease_seconds, rules=self._rules)

    def _held(self) -> Groups:
        """The group, ours: taken over in the first call of a run, with what the run before has left."""
        groups = self._groups
        if self._renewal is None:
            groups.take_over()
            self._renewal = Renewal(groups)
            groups.adopt()
        if self._renewal.lost is not None:
            raise ConsumerGroupLostError(str(self._renewal.lost), queue=self._options.queue)
        return groups

    def _leave(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None
            try:
                self._groups.leave()
            except Exception as error:
                log.warning("the lease of the consumer group ends by itself: %s", type(error).__name__)

    def _acknowledge(self, groups: Groups, number: int) -> None:
        if number > groups.sealed:
            self._mourn(_why_gone(number, groups.sealed, 0))
            groups.jump(number)
        groups.acknowledge(number)

    def _wanted(self, groups: Groups, limit: ReadLimit) -> int:
        """How many messages the next claim may have."""
        if isinstance(limit, ReadMaxRows):
            wanted = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):  # a trigger that runs once: what waits now
            wanted = groups.depth()
        else:
            wanted = self._options.max_messages_per_trigger
        return wanted if self._left is None else min(wanted, self._left)

    def _mourn(self, what: str) -> None:
        """Data loss: an error, or a warning where the user wants to go on."""
        where = f"queue {self._options.queue!r}, consumerGroup {self._options.consumer_group!r}: {what}"
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{where}. Start with a new checkpoint, or set failOnDataLoss to false to go on without them",
                queue=self._options.queue,
            )
        log.warning("messages are lost. %s", where)


def split(sizes: dict[int, int], wanted: int | None) -> list[Part]:
    """Claims in stretches of about the same length, at least as many as wanted if there are messages for them."""
    total = sum(sizes.values())
    count = max(wanted or 1, -(-total // _ROWS_A_TASK))
    length = max(1, total // count) if wanted else _ROWS_A_TASK
    return [Part(number, at, min(at + length, size)) for number, size in sizes.items() for at in range(0, size, length)]


def opened(members: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Stored messages and their delivery counts, of messages as they lie in a claim: see lua/lib/member.lua."""
    stored, counts = list(members), [1] * len(members)
    for place, member in enumerate(members):
        if member[0] < 0x80:
            count, _, stored[place] = member.partition(b":")
            counts[place] = int(count)
    return stored, counts


def _why_gone(number: int, sealed: int, released: int) -> str:
    if number > sealed:
        return (
            f"claim {number} is in the checkpoint and unknown to Redis, where claims end at {sealed}; "
            "the server was emptied or restored, or the checkpoint belongs to another queue"
        )
    if number <= released:
        return f"claim {number} was released by an operator, and its messages went back to the queue"
    return f"claim {number} was acknowledged before, and its messages are gone; the checkpoint is older than that"
