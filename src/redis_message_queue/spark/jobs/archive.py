"""Archives the journal of a queue as a Delta table: append-only, and exact at whatever moment a run dies.

A run reads where the journal ends, writes what the archive does not have into new files, commits them, and only then
allows the journal to be trimmed up to there. The commit has the last serial as the version of an application
transaction, so a serial is committed once, and the next run starts after it.

    <path>/journal      every state change
    <path>/records      settled messages, with the text of their error
    <path>/inventory    what the queue held when it was archived last

`refresh` makes the tables of messages and counts from the journal.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from redis_message_queue.spark.connection import WHOLE, Partition
from redis_message_queue.spark.job_options import ArchiveOptions, CompactOptions
from redis_message_queue.spark.jobs.archive_tables import (
    DRIVER_ROW_LIMIT,
    ArchiveTable,
    DataFile,
    Location,
    TaskRunner,
    in_driver,
    in_tasks,
    location_of,
    translate_storage_errors,
)
from redis_message_queue.spark.jobs.inventory import Inventory, inventory_table
from redis_message_queue.spark.jobs.job import (
    JobProgress,
    JobResult,
    OnProgress,
    ignore_progress,
    require_classic,
    translate_errors,
)
from redis_message_queue.spark.jobs.lake import Lake
from redis_message_queue.spark.jobs.records import RecordArchiver, records_table
from redis_message_queue.spark.journal import (
    BEGINNING,
    SCHEMA,
    JournalReader,
    JournalSnapshot,
    StreamId,
    StreamRange,
    journals_of,
)
from redis_message_queue.values.errors import ArchiveError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ArchiveOptions", "ArchiveResult", "CompactOptions", "CompactResult", "archive", "compact", "read_archive"]

# `journal` tells one journal of a queue from the next: serials start again when a server was flushed.
_FILE_SCHEMA = pa.schema([*SCHEMA, pa.field("journal", pa.string())])

_MOST_PARTITIONS = 8  # that are archived at once

Missing = tuple[int, int]  # the first serial that is missing, and how many are


@dataclass(frozen=True, kw_only=True)
class ArchiveResult(JobResult):
    """What a run has added, and how far the archive goes now: of a queue with partitions, the sum of these."""

    queue: str
    path: str
    rows: int
    files: int
    last_serial: int
    missing: list[Missing]  # serials that this run found missing
    records: int = 0  # of settled messages


@dataclass(frozen=True, kw_only=True)
class CompactResult(JobResult):
    """What a compaction has merged and removed."""

    queue: str
    path: str
    files_before: int
    files_after: int
    rows_deleted: int
    files_removed: int


@dataclass(frozen=True)
class JournalFile:
    """A file with the entries of a range of the journal."""

    file: DataFile
    first_serial: int
    last_serial: int
    last_id: str
    holes: tuple[Missing, ...] = ()  # serials within the range that the journal did not have

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "JournalFile":
        found = json.loads(text)
        holes = tuple((first, count) for first, count in found.pop("holes"))
        return cls(DataFile(**found.pop("file")), holes=holes, **found)


def journal_table(archive: Location) -> ArchiveTable:
    """Return the table of an archive that has the entries of journals."""
    return ArchiveTable(archive, "journal", _FILE_SCHEMA, ("serial", "journal", "at", "id"))


def journal_of(identity: str, partition: int) -> str:
    """Return how the archive names a journal: by its identity, and after a slash the partition unless it is 0."""
    return f"{identity}/{partition}" if partition else identity


def application_of(queue: str, journal: str) -> str:
    """Return the name under which Delta keeps the last serial of a journal that is archived."""
    identity, _, partition = journal.partition("/")
    return f"redis-exact-queue/{identity}/{partition or 0}/{queue}"


def archive(
    spark: "SparkSession | None", options: ArchiveOptions, on_progress: OnProgress = ignore_progress
) -> ArchiveResult:
    """Add to the archive what it does not have: entries of the journal, and records of settled messages.

    Without a session this process does it all, which takes no Java: for few entries.

    Raises:
        JournalError: The queue has no journal.
        ArchiveError: The server was restored to an older state than the archive has, or the storage failed.
        ArchiveConflictError: Another run was faster. Run the job again.
    """
    require_classic(spark, "archiving")
    location = location_of(options.path, options.storage_options, spark)
    with translate_errors("archiving"):
        run_tasks = in_driver if spark is None or fits_in_driver(location, options) else in_tasks(spark)
        result = archive_journals(location, run_tasks, options, on_progress)
        records = RecordArchiver(spark, location, options, on_progress).run()
    return dataclasses.replace(result, records=records)


def fits_in_driver(location: Location, options: ArchiveOptions) -> bool:
    """Return whether the queue has few messages and records, and its journals few entries that are not archived."""
    table = journal_table(location).open()
    entries = messages = 0
    for partition in journals_of(options):
        with JournalReader(options, partition) as journal:
            identity, end = journal_of(journal.state().identity, partition.number), journal.snapshot()
        if end is not None:
            known = None if table is None else table.transaction_version(application_of(options.queue, identity))
            entries += end.serial - (known or 0)
            messages += (end.pending or 0) + (end.processing or 0) + (end.delayed or 0)
    return entries <= DRIVER_ROW_LIMIT and messages <= DRIVER_ROW_LIMIT


def archive_journals(
    location: Location, run_tasks: TaskRunner, options: ArchiveOptions, on_progress: OnProgress = ignore_progress
) -> ArchiveResult:
    """Archive the journals of all partitions side by side, and then what all of them hold."""
    partitions = journals_of(options)
    # Before the ends are read: every message that is found now is in a journal by then.
    inventory = Inventory.read(options, location, run_tasks) if options.inventory else None

    def run(partition: Partition) -> tuple[ArchiveResult, str, JournalSnapshot | None]:
        with JournalReader(options, partition) as journal:
            archiver = Archiver(journal, location, run_tasks, options, on_progress)
            return archiver.run(), archiver.identity, archiver.end

    with ThreadPoolExecutor(min(_MOST_PARTITIONS, len(partitions))) as pool:
        found = list(pool.map(run, partitions)) if len(partitions) > 1 else [run(partitions[0])]
    results = [result for result, _, _ in found]
    ends = {
        partition.number: (identity, end)
        for partition, (_, identity, end) in zip(partitions, found, strict=True)
        if end is not None
    }
    if inventory is not None and ends:
        inventory.commit(ends)
    return dataclasses.replace(
        results[0],
        **{name: sum(getattr(one, name) for one in results) for name in ("rows", "files", "last_serial")},
        missing=[gap for one in results for gap in one.missing],
    )


class Archiver:
    """One run of `archive` over the journal of a queue or a partition."""

    def __init__(
        self,
        journal: JournalReader,
        location: Location,
        run_tasks: TaskRunner,
        options: ArchiveOptions,
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        self._journal, self._location, self._run_tasks = journal, location, run_tasks
        self._options, self._on_progress = options, on_progress
        self._table = journal_table(location)
        found = journal.state().identity  # raises if there is no journal
        self.identity = journal_of(found, journal.partition.number)
        self.end: JournalSnapshot | None = None  # of the journal, when it was archived
        self._application = application_of(options.queue, self.identity)

    def run(self) -> ArchiveResult:
        """Archive up to the end that the journal has now."""
        known = self._table.open_or_create().transaction_version(self._application)
        last_id = self._last_id(known)
        if last_id != BEGINNING:
            self._journal.set_mark(last_id)  # an earlier run may have died before this step
        self.end = end = self._journal.snapshot()
        total = 0 if end is None else max(0, end.serial - (known or 0))
        self._on_progress(JobProgress("planned", 0, total))
        added: list[JournalFile] = []
        missing: list[Missing] = []
        if end is not None:
            self._refuse_an_older_state(known or 0, end)
            for ranges in self._segments(last_id, end):
                files = self._write(ranges)
                if not files:  # trimmed meanwhile; the next segment finds the gap
                    continue
                missing += gaps(known or 0, files)
                known = self._commit(files, known, total)
                added += files
        return ArchiveResult(
            queue=self._options.queue,
            path=self._options.path,
            rows=sum(one.file.rows for one in added),
            files=len(added),
            last_serial=known or 0,
            missing=missing,
        )

    def _last_id(self, known: int | None) -> StreamId:
        """Return the stream id of the last serial in the archive."""
        if known is None:
            return BEGINNING
        found = self._table.read_locally(
            self._options.queue,
            ("serial", "stream_id", "journal"),
            # Without statistics, as after a compaction by a program that writes none, every file may have it.
            lambda one: one.statistics.get("serial", (0, known))[1] >= known,
        ).to_pylist()
        for row in found:
            if (row["serial"], row["journal"]) == (known, self.identity):
                return StreamId.parse(row["stream_id"])
        # Old dates were deleted from the archive. What was archived is below the mark in Redis.
        return self._journal.state().mark or BEGINNING

    def _refuse_an_older_state(self, known: int, end: JournalSnapshot) -> None:
        if end.serial < known:
            raise ArchiveError(
                f"the archive of {self._options.queue!r} goes to serial {known}, but its journal ends at {end.serial}: "
                "the server lost data or was restored from a backup. Archive it under another path.",
                queue=self._options.queue,
            )

    def _segments(self, last_id: StreamId, end: JournalSnapshot) -> Iterator[list[StreamRange]]:
        """Return what is committed in one step: ranges for tasks, each within one date."""
        for day in self._journal.days(StreamRange(last_id.next(), end.last)):
            for segment in self._journal.split(day, self._options.segment_rows):
                yield self._journal.split(segment, self._options.partition_rows)

    def _write(self, ranges: Sequence[StreamRange]) -> list[JournalFile]:
        location, options, identity = self._location, self._options, self.identity
        partition = self._journal.partition

        def write(wanted: StreamRange) -> str | None:
            written = write_range(location, options, identity, wanted, partition)
            return None if written is None else written.to_json()

        return [JournalFile.from_json(one) for one in self._run_tasks(ranges, write)]

    def _commit(self, files: Sequence[JournalFile], known: int | None, total: int) -> int:
        """Commit files, and allow the journal to be trimmed up to their end. Returns their last serial."""
        last = max(files, key=lambda one: one.last_serial)
        self._on_progress(JobProgress("written", last.last_serial - (known or 0), total))
        self._table.commit([one.file for one in files], self._options.queue, self._application, known, last.last_serial)
        self._on_progress(JobProgress("committed", last.last_serial))
        self._journal.set_mark(StreamId.parse(last.last_id))
        self._on_progress(JobProgress("marked", last.last_serial, None, last.last_id))
        return last.last_serial


def gaps(known: int, files: Sequence[JournalFile]) -> Iterator[Missing]:
    """Return the serials after ``known`` that are in none of the files."""
    for one in sorted(files, key=lambda file: file.first_serial):
        if one.first_serial > known + 1:
            yield known + 1, one.first_serial - known - 1
        yield from one.holes
        known = one.last_serial


def write_range(
    location: Location,
    options: ArchiveOptions,
    journal: str,
    wanted: StreamRange,
    partition: Partition = WHOLE,
    rows: int = 10_000,
) -> JournalFile | None:
    """Write the entries of a range into a file. Returns None if they were trimmed meanwhile."""
    serials = SerialTracker()

    def batches(reader: JournalReader) -> Iterator[pa.RecordBatch]:
        for batch in reader.batches(wanted, rows):
            serials.add(batch)
            columns = [*batch.columns, pa.repeat(pa.scalar(journal), batch.num_rows)]
            yield pa.RecordBatch.from_arrays(columns, schema=_FILE_SCHEMA)

    with JournalReader(options, partition) as reader:
        file = journal_table(location).write_file(options.queue, wanted.first.date, batches(reader))
    if file is None:
        return None
    return JournalFile(file, serials.first, serials.last, serials.last_id, tuple(serials.holes))


class SerialTracker:
    """Follows the serials of entries that pass by in order."""

    def __init__(self) -> None:
        self.first = self.last = 0
        self.last_id = ""
        self.holes: list[Missing] = []

    def add(self, batch: pa.RecordBatch) -> None:
        serials = batch.column("serial").to_pylist()
        self.first = self.first or serials[0]
        before = self.last or serials[0] - 1
        if serials[-1] - before != len(serials):
            for one in serials:
                if one > before + 1:
                    self.holes.append((before + 1, one - before - 1))
                before = one
        self.last, self.last_id = serials[-1], batch.column("stream_id")[-1].as_py()


def compact(options: CompactOptions, on_progress: OnProgress = ignore_progress) -> CompactResult:
    """Merge small files of an archive into large ones, and delete what is older than you want to keep.

    Files that were replaced are removed after ``grace_seconds``, for readers that still use them. No entry is added or
    changed. Needs no Spark.

    Raises:
        ArchiveError: There is no archive, files of it are missing or were changed, or its storage failed.
        ArchiveConflictError: Another run was faster. Run the job again.
    """
    location = location_of(options.path, options.storage_options)
    before = journal_files(location, options.queue)
    deleted = removed = 0
    lake = Lake(location, options.queue)
    with_history = (journal_table(location), records_table(location), *lake.with_history)
    tables = (*with_history, inventory_table(location), *lake.current)
    for place, one in enumerate(tables, 1):
        with translate_storage_errors(one.location.uri, options.queue):
            gone, unused = _compact_table(one, options, options.keep_days if one in with_history else None)
        if gone and one is with_history[0]:  # so that no report calls these entries missing
            common = {"at": datetime.now(UTC), "refresh": lake.version(lake.incidents)}
            lake.add_incidents([{**common, "kind": "retention", "messages": gone}])
        deleted, removed = deleted + gone, removed + unused
        on_progress(JobProgress("compacted", place, len(tables), one.name))
    return CompactResult(
        queue=options.queue,
        path=options.path,
        files_before=len(before),
        files_after=len(journal_table(location).files(options.queue)),
        rows_deleted=deleted,
        files_removed=removed,
    )


def _compact_table(archived: ArchiveTable, options: CompactOptions, keep_days: int | None) -> tuple[int, int]:
    """Returns how many rows were deleted, and how many files."""
    table = archived.open()
    if table is None:
        return 0, 0
    deleted = 0
    if keep_days is not None:
        oldest = (datetime.now(UTC) - timedelta(days=keep_days)).date().isoformat()
        name = options.queue.replace("'", "''")
        deleted = table.delete(f"queue = '{name}' and date < '{oldest}'")["num_deleted_rows"] or 0
    archived.verify(_to_merge(archived.files(options.queue), options.target_bytes))
    table.optimize.compact(partition_filters=[("queue", "=", options.queue)], target_size=options.target_bytes)
    before = archived.stored_paths()
    table.vacuum(
        retention_hours=math.ceil(options.grace_seconds / 3600),
        enforce_retention_duration=False,
        dry_run=False,
        full=True,
    )
    # What vacuum returns is no count: it also names files that earlier runs have removed.
    return deleted, len(before - archived.stored_paths())


def _to_merge(files: Sequence[DataFile], target_bytes: int) -> Iterator[DataFile]:
    """Return the files that compaction may merge: the small ones of each day, if there are several."""
    by_date: dict[str, list[DataFile]] = {}
    for one in files:
        if one.size < target_bytes:
            by_date.setdefault(one.date, []).append(one)
    for small in by_date.values():
        if len(small) > 1:
            yield from small


def archived_queues(location: Location) -> list[str]:
    """Return the names of the queues that are archived here.

    Raises:
        ArchiveError: There is none.
    """
    found = sorted({one.queue for one in journal_table(location).files()})
    if not found:
        raise ArchiveError(f"no queue is archived at {location.uri}. Run archive first.")
    return found


def journal_files(location: Location, queue: str) -> list[DataFile]:
    """Return the files with the journal of a queue, or raise an error that names the queues that are archived here."""
    found = journal_table(location).files()
    own = [one for one in found if one.queue == queue]
    if not own and not Lake(location, queue).refreshes.files(queue):  # all of it may be too old to be kept
        archived = ", ".join(repr(name) for name in sorted({one.queue for one in found})) or "none"
        raise ArchiveError(
            f"there is no archive of the queue {queue!r} at {location.uri}; archived there: {archived}. Run archive "
            "first.",
            queue=queue,
        )
    return own


def read_archive(
    spark: "SparkSession", path: str, queue: str, storage_options: Mapping[str, str] | None = None
) -> "DataFrame":
    """Return the archived entries of a queue, as they are committed now.

    Raises:
        ArchiveError: The queue has no archive at this path, or files of it are missing or were changed.
    """
    location = location_of(path, storage_options, spark)
    journal_files(location, queue)
    return journal_table(location).read(spark, queue)
