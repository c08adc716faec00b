"""The records beside a queue's completed, failed and dead lists, kept in its archive: each once.

What the journal does not tell, they do: the text of an error, and length and hash of a payload. The lists are cut to
their limits, so a record is kept if it is still there when an archive is made. Which one is new is seen by what the
archive has: a list at work moves while it is read, and one that is missed or seen twice is put right by the next run.
"""

import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from redis_message_queue.errors import ArchiveConflictError, ArchiveError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.protocol.records import Entry, pair, record_of
from redis_message_queue.spark.jobs.files import Files, files_at
from redis_message_queue.spark.jobs.ledger import RECORDS, Kept, Ledger, Manifest, retired
from redis_message_queue.spark.jobs.parquet import save
from redis_message_queue.spark.jobs.progress import OnProgress, Progress
from redis_message_queue.spark.journal import QueueAddress, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PAGE = 1_000  # records a round trip
_TASK = 50_000  # records that one task reads
_TIME = pa.timestamp("us", tz="UTC")
_KNOWN_BY = ("source", "id", "finished_at")
# In UTC, whatever the session's time zone.
_DAY = "string(date_from_unix_date(int(unix_micros(finished_at) div 86400000000))) as day"
# What is known of a message that has left its queue.
OUTCOME = (
    ("id", pa.string()),
    ("tenant", pa.string()),
    ("delivery_count", pa.int64()),
    ("published_at", _TIME),
    ("claimed_at", _TIME),
    ("finished_at", _TIME),
    ("reason", pa.string()),
    ("error_type", pa.string()),
    ("error", pa.string()),
    ("replay_of", pa.string()),
)
SCHEMA = pa.schema(
    [
        ("source", pa.string()),  # completed, failed or dead_letters
        *OUTCOME,
        ("payload_bytes", pa.int64()),
        ("payload_sha1", pa.string()),
    ]
)
DDL = ddl(SCHEMA)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of one list of records, counted from its old end, which does not move when records arrive."""

    source: str
    key: str
    start: int
    stop: int


def stretches(client: Any, keys: QueueKeys) -> list[Stretch]:
    """All records that a queue has now, in pieces for tasks."""
    lists = {"completed": keys.completed, "failed": keys.failed, "dead_letters": keys.dead_letter}
    records = {source: keys.records(key) for source, key in lists.items()}
    return [
        Stretch(source, key, start, start + _TASK)
        for source, key in records.items()
        for start in range(0, client.llen(key), _TASK)
    ]


def read_stretches(address: QueueAddress, pieces: Sequence[Stretch]) -> Any:
    """What each task runs: for each number that it is given, the records of that piece."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = address.connect()
        try:
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    yield from _read(client, pieces[place])
        finally:
            client.close()

    return read


def _read(client: Any, piece: Stretch) -> Iterator[pa.RecordBatch]:
    for at in range(piece.start, piece.stop, _PAGE):
        notes = client.lrange(piece.key, -at - _PAGE, -at - 1)
        rows = [_row(piece.source, one) for one in pair([], notes, whole=True) if one.note and one.note.get("id")]
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)
        if len(notes) < _PAGE:
            return


def _row(source: str, entry: Entry) -> dict[str, Any]:
    record, note = record_of(entry, decode=False), entry.note or {}
    known = {name: getattr(record, name) for name in SCHEMA.names if hasattr(record, name)}
    return {**known, "source": source, "payload_bytes": note.get("bytes"), "payload_sha1": note.get("sha1")}


class RecordKeeper:
    """Adds to an archive the records that it does not have."""

    def __init__(self, spark: "SparkSession", files: Files, address: QueueAddress, on_progress: OnProgress) -> None:
        self._spark, self._address, self._tell = spark, address, on_progress
        self._ledger = Ledger(files, address.queue)

    def run(self) -> int:
        """How many were added."""
        manifest = self._ledger.read()
        pieces = self._pieces()
        if not pieces:
            return 0
        numbers = self._spark.range(0, len(pieces), 1, len(pieces))
        found = numbers.mapInArrow(read_stretches(self._address, pieces), DDL).persist()
        try:
            new = self._unknown(found, manifest)
            days = sorted(row.day for row in new.select("day").distinct().collect())
            kept = [self._write(new, day) for day in days]
        finally:
            found.unpersist()
        if not kept:
            return 0
        committed = self._ledger.commit(lambda now: _added(now, manifest, kept))
        count = sum(one.rows for one in kept)
        self._tell(Progress("kept", count, None, f"records, manifest {committed.version}"))
        return count

    def _pieces(self) -> list[Stretch]:
        client = self._address.connect()
        try:
            return stretches(client, self._address.keys)
        finally:
            client.close()

    def _unknown(self, found: "DataFrame", manifest: Manifest) -> "DataFrame":
        """Without those that the archive has; a record is looked for on its own day alone."""
        new = found.where("finished_at is not null").dropDuplicates(list(_KNOWN_BY)).selectExpr("*", _DAY)
        days = {row.day for row in new.select("day").distinct().collect()}
        known = [one.path for one in manifest.kept if one.date in days]
        if not known:
            return new
        archived = _opened(self._spark, self._ledger, known).select(*_KNOWN_BY)
        return new.join(archived, list(_KNOWN_BY), "left_anti")

    def _write(self, new: "DataFrame", day: str) -> Kept:
        return _written(self._spark, self._ledger, new.where(f"day = '{day}'").drop("day"), day)


def compact_records(spark: "SparkSession", files: Files, queue: str, on_progress: OnProgress) -> int:
    """Put the records of each day together; how many directories were replaced."""
    ledger = Ledger(files, queue)
    by_day: dict[str, list[Kept]] = {}
    for one in ledger.read().kept:
        by_day.setdefault(one.date, []).append(one)
    scattered = {day: kept for day, kept in by_day.items() if len(kept) > 1}
    for place, (day, kept) in enumerate(scattered.items(), 1):
        whole = _written(spark, ledger, _opened(spark, ledger, [one.path for one in kept]), day)
        _replace(ledger, kept, whole)
        on_progress(Progress("merged", place, len(scattered), f"records of {day}"))
    return sum(len(kept) for kept in scattered.values())


def read_records(spark: "SparkSession", path: str, queue: str) -> "DataFrame":
    """The archived records of a queue, as they are committed now; no rows if there are none."""
    ledger = Ledger(files_at(path, spark), queue)
    return _opened(spark, ledger, [one.path for one in ledger.read().kept])


def _written(spark: "SparkSession", ledger: Ledger, rows: "DataFrame", day: str) -> Kept:
    """In one file, as one day's records rarely fill more, and counted as they can be read again."""
    path = f"{RECORDS}/date={day}/{uuid.uuid4().hex[:12]}"
    save(rows.coalesce(1), f"{ledger.files.root}/{ledger.directory}/{path}")
    return Kept(path, day, _opened(spark, ledger, [path]).count())


def _opened(spark: "SparkSession", ledger: Ledger, paths: Sequence[str]) -> "DataFrame":
    if not paths:
        return spark.createDataFrame([], DDL)
    return spark.read.schema(DDL).parquet(*(f"{ledger.files.root}/{ledger.directory}/{path}" for path in paths))


def _added(now: Manifest, known: Manifest, kept: list[Kept]) -> Manifest:
    """Another run that has added records meanwhile may have added the same; a compaction has not, and may go first."""
    if sum(one.rows for one in now.kept) != sum(one.rows for one in known.kept):
        raise ArchiveConflictError(
            f"another run has archived records of {now.queue!r} meanwhile; what this one has written is not used. "
            "Run it again.",
            queue=now.queue,
        )
    return dataclasses.replace(now, kept=(*now.kept, *kept))


def _replace(ledger: Ledger, kept: Sequence[Kept], whole: Kept) -> None:
    gone = {one.path for one in kept}

    def change(now: Manifest) -> Manifest:
        if not gone <= {one.path for one in now.kept}:
            raise ArchiveConflictError(
                f"another compaction of {now.queue!r} was faster; what this one has written is not used. Run it again.",
                queue=now.queue,
            )
        if whole.rows != sum(one.rows for one in kept):
            raise ArchiveError(
                f"compaction read {whole.rows} records where the manifest names {sum(one.rows for one in kept)}: files "
                "were removed or changed by hand. Nothing was replaced.",
                queue=now.queue,
            )
        rest = tuple(one for one in now.kept if one.path not in gone)
        return dataclasses.replace(now, kept=(*rest, whole), retired=now.retired + retired(gone))

    ledger.commit(change)
