"""The journal of a queue into Parquet: append-only, and exact whatever moment a run dies at.

A run notes where the journal ends, writes what the archive does not have into directories of their own, names them in
a manifest, and only then tells Redis that the journal may be trimmed up to there. Until the manifest is made, what
was written does not exist; and the next run begins behind the last serial that a manifest names.

    <path>/queue=<name>/date=<day>/serials-<first>-<last>-<run>/part-*.parquet
    <path>/queue=<name>/records/date=<day>/<run>/part-*.parquet
    <path>/queue=<name>/_manifests/<number>.json
"""

import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from redis_message_queue import checks
from redis_message_queue.errors import ArchiveConflictError, ArchiveError, ConfigurationError
from redis_message_queue.spark.jobs.clear_errors import one_clear_error
from redis_message_queue.spark.jobs.files import Files, files_at
from redis_message_queue.spark.jobs.ledger import Depth, Ledger, Manifest, Missing, Segment, queues_in, retired
from redis_message_queue.spark.jobs.parquet import save
from redis_message_queue.spark.jobs.progress import JsonResult, OnProgress, Progress, unheard
from redis_message_queue.spark.jobs.records import RecordKeeper, compact_records
from redis_message_queue.spark.journal import DDL, Census, Journal, QueueAddress, Span, read_spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY_SECONDS = 86_400
ENTRIES = f"{DDL}, queue string, date date"


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(QueueAddress):
    """What `archive` needs to know."""

    path: str
    partition_rows: int = 100_000  # entries that one task reads
    segment_rows: int = 2_000_000  # entries that one step commits
    grace_seconds: float = _DAY_SECONDS  # how long directories are kept that no manifest names

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.text("path", self.path)
        checks.whole_number("partition_rows", self.partition_rows)
        checks.whole_number("segment_rows", self.segment_rows)
        checks.number("grace_seconds", self.grace_seconds, least=0)


@dataclass(frozen=True, kw_only=True)
class CompactOptions:
    """What `compact` needs to know."""

    path: str
    queue: str
    target_rows: int = 2_000_000  # entries in a directory that is large enough
    file_rows: int = 1_000_000
    grace_seconds: float = _DAY_SECONDS  # how long those may go on who read what was replaced

    def __post_init__(self) -> None:
        checks.text("path", self.path)
        checks.text("queue", self.queue)
        checks.whole_number("target_rows", self.target_rows)
        checks.whole_number("file_rows", self.file_rows)
        checks.number("grace_seconds", self.grace_seconds, least=0)


@dataclass(frozen=True, kw_only=True)
class ArchiveResult(JsonResult):
    """What a run has added, and where the archive stands now."""

    queue: str
    path: str
    rows: int
    segments: int
    last_serial: int
    missing: list[Missing]  # what this run found missing; the manifests know of all
    missing_in_all: int
    removed: int
    records: int = 0  # of settled messages, whose lists still had them


@dataclass(frozen=True, kw_only=True)
class CompactResult(JsonResult):
    """What a compaction has done."""

    queue: str
    path: str
    segments_before: int
    segments_after: int
    rows: int
    removed: int
    record_directories: int = 0  # that were put together into one a day


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer found in the directory that it has written, once it had written it."""

    rows: int
    first_serial: int = 0
    last_serial: int = 0
    first_id: str = ""
    last_id: str = ""
    holes: tuple[Missing, ...] = ()


class Writer(Protocol):
    """Whoever writes Parquet: Spark, or something smaller in a test."""

    def write(self, spans: Sequence[Span], directory: str) -> Written: ...

    def merge(self, sources: Sequence[str], directory: str, files: int) -> Written: ...


def archive(spark: "SparkSession", options: ArchiveOptions, on_progress: OnProgress = unheard) -> ArchiveResult:
    """Add to the archive what the journal has now and the archive has not, and then the records of settled messages."""
    files = files_at(options.path, spark)
    with Journal(options) as journal, one_clear_error("archiving"):
        result = Archiver(journal, files, SparkWriter(spark, options), options, on_progress).run()
        records = RecordKeeper(spark, files, plain(options), on_progress).run()
    return dataclasses.replace(result, records=records)


def compact(spark: "SparkSession", options: CompactOptions, on_progress: OnProgress = unheard) -> CompactResult:
    """Put small directories of one date together into large ones; no entry is added, changed or lost."""
    files = files_at(options.path, spark)
    with one_clear_error("compacting"):
        merged = compact_records(spark, files, options.queue, on_progress)
        result = Compactor(files, SparkWriter(spark), options, on_progress).run()
    return dataclasses.replace(result, record_directories=merged)


class Archiver:
    """One run of the archive."""

    def __init__(
        self, journal: Journal, files: Files, writer: Writer, options: ArchiveOptions, on_progress: OnProgress = unheard
    ) -> None:
        self._journal, self._writer, self._options, self._tell = journal, writer, options, on_progress
        self._ledger = Ledger(files, options.queue)

    def run(self) -> ArchiveResult:
        self._journal.state()  # raises where there is no journal
        manifest = before = self._ledger.read()
        if manifest.segments:
            self._journal.set_mark(manifest.last_id)  # of a run that died before it came to that
        end = self._journal.census()
        total = 0 if end is None else max(0, end.serial - manifest.last_serial)
        self._tell(Progress("planned", 0, total))
        if end is not None:
            self._refuse_another_journal(manifest, end)
            for span in self._pieces(manifest, end):
                manifest = self._add(manifest, span, end, total)
        removed = self._ledger.clean(self._options.grace_seconds)
        new = [one for one in manifest.segments if one.first_serial > before.last_serial]
        return ArchiveResult(
            queue=self._options.queue,
            path=self._options.path,
            rows=sum(one.rows for one in new),
            segments=len(new),
            last_serial=manifest.last_serial,
            missing=[one for segment in new for one in segment.missing],
            missing_in_all=sum(count for _, count in manifest.missing),
            removed=removed,
        )

    def _refuse_another_journal(self, manifest: Manifest, end: Census) -> None:
        begins = self._journal.after(manifest.last_id)
        behind = end.last < manifest.last_id or end.serial < manifest.last_serial
        goes_on = begins[1] if begins else end.serial
        if behind or (begins is not None and begins[1] <= manifest.last_serial):
            raise ArchiveError(
                f"the journal of {self._options.queue!r} is not the one that this archive was made from: the archive "
                f"ends at serial {manifest.last_serial} and the journal goes on at {goes_on}. "
                "It was deleted, or the server lost data. Archive it under another path.",
                queue=self._options.queue,
            )

    def _pieces(self, manifest: Manifest, end: Census) -> Iterator[Span]:
        for day in self._journal.days(Span(manifest.last_id.next(), end.last)):
            yield from self._journal.split(day, self._options.segment_rows)

    def _add(self, manifest: Manifest, span: Span, end: Census, total: int) -> Manifest:
        """Write one piece, commit it, and let the journal go up to its end."""
        spans = self._journal.split(span, self._options.partition_rows)
        first, last = self._journal.after(manifest.last_id), self._journal.last_serial(span)
        if not spans or first is None or last is None:  # trimmed away meanwhile; what comes next tells of the gap
            return manifest
        date = span.first.date
        directory = _directory(date, first[1], last)
        written = self._writer.write(spans, f"{self._ledger.files.root}/{self._ledger.directory}/{directory}")
        if not written.rows:
            return manifest
        self._tell(Progress("written", written.last_serial - manifest.last_serial, total, directory))
        missing = _missing(manifest.last_serial, written)
        segment = Segment(
            path=directory,
            date=date,
            first_serial=written.first_serial,
            last_serial=written.last_serial,
            first_id=written.first_id,
            last_id=written.last_id,
            rows=written.rows,
            missing=missing,
        )
        depth = _depth(end) if written.last_serial == end.serial else None
        committed = self._ledger.commit(lambda now: _appended(now, manifest, segment, depth))
        self._tell(Progress("committed", written.last_serial, None, f"manifest {committed.version}"))
        self._journal.set_mark(committed.last_id)
        self._tell(Progress("marked", written.last_serial, None, written.last_id))
        return committed


def _directory(date: str, first: int, last: int) -> str:
    """Named by its serials, and by this run: two runs at once never write into the same directory."""
    return f"date={date}/serials-{first:016}-{last:016}-{uuid.uuid4().hex[:12]}"


def _missing(known: int, written: Written) -> tuple[Missing, ...]:
    before = written.first_serial - known - 1
    return (((known + 1, before),) if before > 0 else ()) + written.holes


def _depth(end: Census) -> Depth | None:
    if end.pending is None or end.processing is None or end.delayed is None:
        return None
    return Depth(end.serial, end.pending, end.processing, end.delayed)


def _appended(now: Manifest, known: Manifest, segment: Segment, depth: Depth | None) -> Manifest:
    """A compaction in between does no harm; another run that has added the same does."""
    if now.last_id != known.last_id:
        raise ArchiveConflictError(
            f"another run has archived {now.queue!r} meanwhile up to serial {now.last_serial}; what this one has "
            "written is not used. Run it again.",
            queue=now.queue,
        )
    return dataclasses.replace(now, segments=(*now.segments, segment), depth=depth)


class Compactor:
    """One compaction of the archive of one queue."""

    def __init__(
        self, files: Files, writer: Writer, options: CompactOptions, on_progress: OnProgress = unheard
    ) -> None:
        self._writer, self._options, self._tell = writer, options, on_progress
        self._ledger = Ledger(files, options.queue)

    def run(self) -> CompactResult:
        manifest = before = self._ledger.read()
        if not manifest.segments:
            raise ArchiveError(
                f"there is no archive of the queue {self._options.queue!r} at {self._options.path}: run archive first",
                queue=self._options.queue,
            )
        groups = list(small_neighbours(manifest.segments, self._options.target_rows))
        for place, group in enumerate(groups, 1):
            manifest = self._merge(group, place, len(groups))
        removed = self._ledger.clean(self._options.grace_seconds)
        self._tell(Progress("cleaned", removed))
        return CompactResult(
            queue=self._options.queue,
            path=self._options.path,
            segments_before=len(before.segments),
            segments_after=len(manifest.segments),
            rows=sum(segment.rows for group in groups for segment in group),
            removed=removed,
        )

    def _merge(self, group: Sequence[Segment], place: int, of: int) -> Manifest:
        first, last = group[0], group[-1]
        rows = sum(one.rows for one in group)
        directory = _directory(first.date, first.first_serial, last.last_serial)
        here = f"{self._ledger.files.root}/{self._ledger.directory}"
        files = -(-rows // self._options.file_rows)
        written = self._writer.merge([f"{here}/{one.path}" for one in group], f"{here}/{directory}", files)
        if (written.rows, written.first_serial, written.last_serial) != (rows, first.first_serial, last.last_serial):
            raise ArchiveError(
                f"compaction read {written.rows} entries where the manifest names {rows}: files under {here} were "
                "removed or changed by hand. Nothing was replaced.",
                queue=self._options.queue,
            )
        self._tell(Progress("merged", place, of, directory))
        whole = Segment(
            path=directory,
            date=first.date,
            first_serial=first.first_serial,
            last_serial=last.last_serial,
            first_id=first.first_id,
            last_id=last.last_id,
            rows=rows,
            missing=tuple(one for segment in group for one in segment.missing),
        )
        committed = self._ledger.commit(lambda now: _replaced(now, group, whole))
        self._tell(Progress("committed", place, of, f"manifest {committed.version}"))
        return committed


def small_neighbours(segments: Sequence[Segment], target_rows: int) -> Iterator[list[Segment]]:
    """Runs of two or more segments of one date that together are no larger than the target."""
    group: list[Segment] = []
    for one in segments:
        if group and (one.date != group[0].date or sum(each.rows for each in group) + one.rows > target_rows):
            if len(group) > 1:
                yield group
            group = []
        group.append(one)
    if len(group) > 1:
        yield group


def _replaced(now: Manifest, group: Sequence[Segment], whole: Segment) -> Manifest:
    gone = {one.path for one in group}
    if not gone <= {one.path for one in now.segments}:
        raise ArchiveConflictError(
            f"another compaction of {now.queue!r} was faster; what this one has written is not used. Run it again.",
            queue=now.queue,
        )
    place = next(index for index, one in enumerate(now.segments) if one.path in gone)
    rest = [one for one in now.segments if one.path not in gone]
    segments = (*rest[:place], whole, *rest[place:])
    return dataclasses.replace(now, segments=segments, retired=now.retired + retired(gone))


class SparkWriter:
    """Writes Parquet by Spark, and looks at what it has written before anybody else may."""

    def __init__(self, spark: "SparkSession", address: QueueAddress | None = None) -> None:
        self._spark, self._address = spark, address

    def write(self, spans: Sequence[Span], directory: str) -> Written:
        if self._address is None:
            raise ConfigurationError("a writer without a queue's address can only merge")
        numbers = self._spark.range(0, len(spans), 1, len(spans))
        save(numbers.mapInArrow(read_spans(plain(self._address), spans), DDL), directory)
        return self._look(directory)

    def merge(self, sources: Sequence[str], directory: str, files: int) -> Written:
        found = self._spark.read.schema(DDL).parquet(*sources)
        save(found.repartitionByRange(files, "serial").sortWithinPartitions("serial"), directory)
        return self._look(directory)

    def _look(self, directory: str) -> Written:
        rows = self._spark.read.schema(DDL).parquet(directory)
        found: Any = rows.selectExpr(
            "count(*)", "min(serial)", "max(serial)", "min_by(stream_id, serial)", "max_by(stream_id, serial)"
        ).first()
        count, first, last, first_id, last_id = found
        if not count:
            return Written(0)
        holes: tuple[Missing, ...] = ()
        if count != last - first + 1:
            found = rows.selectExpr("serial", "lag(serial) over (order by serial) as before").where(
                "serial > before + 1"
            )
            holes = tuple((one.before + 1, one.serial - one.before - 1) for one in found.orderBy("serial").collect())
        return Written(count, first, last, first_id, last_id, holes)


def plain(address: QueueAddress) -> QueueAddress:
    """The address alone, for tasks."""
    return QueueAddress(**{one.name: getattr(address, one.name) for one in dataclasses.fields(QueueAddress)})


def manifest_of(files: Files, queue: str, path: str) -> Manifest:
    """The newest state of a queue's archive, or an error that says which queues are archived there."""
    manifest = Ledger(files, queue).read()
    if not manifest.segments:
        there = ", ".join(map(repr, queues_in(files))) or "none"
        raise ArchiveError(
            f"there is no archive of the queue {queue!r} at {path}; archived there: {there}", queue=queue
        )
    return manifest


def entries(spark: "SparkSession", path: str, manifest: Manifest) -> "DataFrame":
    """The entries that a manifest names, with columns `queue` and `date` beside those of the journal."""
    files = files_at(path, spark)
    directory = Ledger(files, manifest.queue).directory
    paths = [f"{files.root}/{directory}/{one.path}" for one in manifest.segments]
    return spark.read.schema(ENTRIES).option("basePath", files.root).parquet(*paths)


def read_archive(spark: "SparkSession", path: str, queue: str) -> "DataFrame":
    """The archived entries of a queue, as they are committed now."""
    return entries(spark, path, manifest_of(files_at(path, spark), queue, path))
