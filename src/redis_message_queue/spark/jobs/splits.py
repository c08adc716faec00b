"""Publishes the rows of a file split by split, each row once, and keeps in Redis how far each split is.

A split is a part of a file that one task reads. The files are always split at the same bytes, so a split has the same
rows in the same order in every run. The script that stores rows also notes how many rows of the split are stored, and a
digest of them: a task that is repeated, in this run or a later one, skips as many rows, and notices if they are others.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from redis_message_queue.process.identity import new_id
from redis_message_queue.protocol.port import Command, finish
from redis_message_queue.spark.connection import RedisReader, open_partitions
from redis_message_queue.spark.job_options import BackfillOptions
from redis_message_queue.spark.jobs.publishing import RowCount
from redis_message_queue.stored import envelope
from redis_message_queue.stored.bounds import MAX_BYTES
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.stored.keys import script_keys
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.errors import QueueBackpressureError, SelectionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT_BYTES = 32 * 1024 * 1024  # changing it splits all files anew, and forgets how far each split is
_ROWS_IN_TURN = 1_000  # of a split, without a tenant, that go to the same partition
_FULL = b"-"
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.1
# What Spark would otherwise choose by the number of cores. A split of its own for each file: no task has two of them.
_SPLITTING = {"spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes"}
_NOT_SPLITTING = {"spark.sql.files.maxPartitionNum", "spark.sql.files.minPartitionNum"}


@contextmanager
def same_splits(spark: "SparkSession") -> Iterator[None]:
    """Let Spark split files at the same bytes, whatever cluster it runs on."""
    before = {name: spark.conf.get(name, None) for name in _SPLITTING | _NOT_SPLITTING}
    for name in _SPLITTING:
        spark.conf.set(name, SPLIT_BYTES)
    for name in _NOT_SPLITTING:
        spark.conf.unset(name)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


class SplitRow(NamedTuple):
    """A row of a split. Without a payload it is only counted: a blank line."""

    payload: bytes | None
    tenant: bytes = b""


class Done(NamedTuple):
    """How many rows of a split are published, and their digest."""

    rows: int = 0
    digest: str = ""

    @classmethod
    def parse(cls, stored: bytes | None) -> "Done":
        rows, _, digest = (stored or b"0:").decode("utf-8", "replace").partition(":")
        if not rows.isdigit():
            raise SelectionError(f"the progress of this backfill holds a foreign value ({rows[:40]!r})")
        return cls(int(rows), digest)

    @property
    def stored(self) -> str:
        return f"{self.rows}:{self.digest}" if self.rows else ""


def _add(digest: Any, row: SplitRow) -> None:
    payload = row.payload or b""
    digest.update(b"%d:%d:%b%b" % (len(row.tenant), len(payload), row.tenant, payload))


class SplitPublisher:
    """Publishes the rows of one split after the other, over its own connection.

    In a queue with partitions each has its own rows of the split: those of its tenants, and of the others each thousand
    in turn. So each partition gets the same rows in every run, and keeps how far it is.
    """

    def __init__(self, options: BackfillOptions) -> None:
        self.count = RowCount()
        self._client: Any = options.connect()
        self._parts = [PartPublisher(options, one, self.count) for one in open_partitions(self._client, options)]
        self._rows = self._first = 0  # rows of the split so far, and the partition of the first

    def __enter__(self) -> "SplitPublisher":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def begin(self, file: str, start: int) -> None:
        """Start with the first row of a split. The split before it is finished."""
        self._rows, self._first = 0, partition_of(f"{file} {start}", len(self._parts))
        for one in self._parts:
            one.begin(file, start)

    def add(self, row: SplitRow) -> None:
        """Take the next row of the split: publish it, or skip it if it is published."""
        count = len(self._parts)
        place = 0 if count == 1 else self._place(row, count)
        self._rows += 1
        self._parts[place].add(row)

    def _place(self, row: SplitRow, count: int) -> int:
        if row.tenant:
            return partition_of(row.tenant.decode(), count)
        return (self._first + self._rows // _ROWS_IN_TURN) % count

    def finish(self) -> None:
        """Publish what is left of the split."""
        for one in self._parts:
            one.finish()


@dataclass
class PartPublisher:
    """Publishes the rows of splits that one partition gets, or all of them in a queue without partitions."""

    options: BackfillOptions
    _reader: RedisReader
    count: RowCount

    def __post_init__(self) -> None:
        options, own = self.options, self._reader.keys
        self._key = own.backfill(options.label)
        keep_ms = max(1, int(options.message_deduplication_log_ttl_seconds * 1000))
        limits = (options.max_pending_length or 0, options.max_pending_per_tenant or 0)
        prefixes = (own.tenant_pending(""), own.expired(""))
        keys = script_keys(own, script("backfill").keys, backfill=self._key)
        self._command = Command(script("backfill"), keys, (*prefixes, keep_ms, *limits))
        self._most = min(options.batch_size, *(limit or options.batch_size for limit in limits))
        self._split = ""

    def begin(self, file: str, start: int) -> None:
        """Start with the first row of a split. The split before it is finished."""
        self.finish()
        self._file, self._split = file, f"{file} {start}"
        self._seen, self._digest = 0, hashlib.blake2b(digest_size=8)
        self._start_chunk()
        (stored,) = self._reader.read(("HGET", self._key, self._split))
        self._done = Done.parse(stored)

    def add(self, row: SplitRow) -> None:
        """Take the next row of the split: publish it, or skip it if it is published."""
        size = len(row.payload or b"")
        if self._chunk and (len(self._chunk) >= self._most or self._bytes + size > MAX_BYTES):
            self._send()
        _add(self._digest, row)
        self._seen += 1
        if self._seen > self._done.rows:
            self._bytes += size
            self._chunk.append(row)
            return
        self.count.suppressed += row.payload is not None
        if self._seen == self._done.rows:
            self._check(self._digest.hexdigest())
            self._start_chunk()

    def finish(self) -> None:
        """Publish what is left of the split."""
        if self._split:
            if self._seen < self._done.rows:
                raise self._changed()
            self._send()
        self._split = ""

    def _start_chunk(self) -> None:
        self._chunk: list[SplitRow] = []
        self._bytes, self._before_chunk = 0, self._digest.copy()

    def _send(self) -> None:
        """Publish the chunk. What another task has published of it meanwhile is left out."""
        after = Done(self._seen, self._digest.hexdigest())
        while any(row.payload is not None for row in self._chunk):
            before, now = self._done, self._store(after)
            if now == after:
                self.count.published += sum(row.payload is not None for row in self._chunk)
                self._done = now
                break
            if now.rows <= before.rows:
                raise SelectionError(f"the progress of this backfill was deleted while it ran. {_HOW_TO_REPEAT}")
            self._done = now
            self._leave_out(now.rows - before.rows)
        self._start_chunk()

    def _leave_out(self, rows: int) -> None:
        published, self._chunk = self._chunk[:rows], self._chunk[rows:]
        for row in published:
            _add(self._before_chunk, row)
            self.count.suppressed += row.payload is not None
        if len(published) == rows:  # else another task is ahead of this one, and its rows are compared as they come
            self._check(self._before_chunk.hexdigest())

    def _store(self, after: Done) -> Done:
        """Return how far the split is now. Waits for room in a full queue until the time is up."""
        bodies = [envelope.body(row.payload, row.tenant) for row in self._chunk if row.payload is not None]
        where = (self._split, self._done.stored, after.stored)
        give_up_at = time.monotonic() + self.options.pending_overload_block_timeout_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            base = new_id()[: envelope.BASE_BYTES]
            reply: bytes = finish(self._reader.calls.call(self._command, (base, *where, *bodies)))
            if reply != _FULL:
                return Done.parse(reply)
            if time.monotonic() >= give_up_at:
                raise self._full()
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE_SECONDS, 1.5 * pause)

    def _check(self, digest: str) -> None:
        if digest != self._done.digest:
            raise self._changed()

    def _changed(self) -> SelectionError:
        return SelectionError(
            f"{self._file} has changed: its first {self._done.rows:,} rows are not those that an earlier run has "
            f"published{' into this partition, or the queue has grown' if self._reader.partition.count > 1 else ''}. "
            f"{_HOW_TO_REPEAT}"
        )

    def _full(self) -> QueueBackpressureError:
        names = ("max_pending_length", "max_pending_per_tenant")
        limits = [f"{name} is {getattr(self.options, name)}" for name in names if getattr(self.options, name)]
        return QueueBackpressureError(
            f"the queue is full for {self.options.pending_overload_block_timeout_seconds:g} s: "
            f"{' and '.join(limits)}; {self.count.published:,} rows were published, run the job again when consumers "
            "have caught up",
            queue=self.options.queue,
            operation="publish",
        )


_HOW_TO_REPEAT = "Give the backfill another name to publish all rows of its files."


def publish_splits(rows: Iterable[dict[str, Any]], options: BackfillOptions) -> RowCount:
    """Publish rows with `payload`, `tenant`, `file` and `start`, in the order of their splits."""
    split: tuple[Any, ...] = ()
    with SplitPublisher(options) as publisher:
        for row in rows:
            if split != (row["file"], row["start"]):
                split = (row["file"], row["start"])
                publisher.begin(*split)
            publisher.add(SplitRow(row["payload"], tenant_name(row["tenant"]) if row["tenant"] else b""))
        publisher.finish()
    return publisher.count
