"""Publishes the rows of files or of a table, each once, also if the job has to be run again.

A finished file is saved in Redis, and not read again unless it has changed. Of other files it is known how many rows of
each split are published: see `splits`. With a column of deduplication keys, every row has its own key instead. So has a
row of a table, made from its content and the number of equal rows: tables have no order.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from redis_message_queue.spark.connection import open_partitions
from redis_message_queue.spark.job_options import BackfillOptions
from redis_message_queue.spark.jobs.job import (
    JobProgress,
    JobResult,
    OnProgress,
    ignore_progress,
    reason,
    require_classic,
    translate_errors,
)
from redis_message_queue.spark.jobs.lines import BadLine, LineReader
from redis_message_queue.spark.jobs.publishing import RowCount, messages_of, publish_rows, sum_of_tasks
from redis_message_queue.spark.jobs.splits import publish_splits, same_splits
from redis_message_queue.spark.sink import BulkPublisher
from redis_message_queue.values.errors import PayloadValueError, SelectionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BackfillOptions", "BackfillResult", "backfill"]

# A row that cannot be read ends the job: a message made of nulls would be noticed too late.
_READER_DEFAULTS: dict[str, dict[str, str]] = {
    "json": {"mode": "FAILFAST"},
    "csv": {"mode": "FAILFAST", "header": "true"},
    "parquet": {},
    "text": {},
}
_SAMPLE_LINES = 1_000  # in which a field of JSON lines is looked for


@dataclass(frozen=True, kw_only=True)
class BackfillResult(JobResult):
    """How many rows were published, and how many files were read."""

    queue: str
    source: str
    rows: int
    published: int
    suppressed: int  # their keys were published before
    files: int
    files_done_before: int


def backfill(
    spark: "SparkSession", options: BackfillOptions, on_progress: OnProgress = ignore_progress
) -> BackfillResult:
    """Publish every row of the source that no earlier run has published.

    Raises:
        SelectionError: The source cannot be read, or does not have a column that the options name.
        QueueBackpressureError: The queue stayed full. Run the job again.
    """
    require_classic(spark, "the backfill")
    rows = _open_source(spark, options)
    _check_columns(rows, options)
    with translate_errors("the backfill"):
        if options.format == "table":
            count = _publish_table(rows, options)
            on_progress(JobProgress("published", count.published + count.suppressed))
            return _result(options, count, 0, 0)
        return _backfill_files(spark, rows, options, on_progress)


def _backfill_files(
    spark: "SparkSession", rows: "DataFrame", options: BackfillOptions, on_progress: OnProgress
) -> BackfillResult:
    """Publish a few files at a time, and save the progress after each step."""
    stamps = {file: _stamp(spark, file) for file in sorted(rows.inputFiles())}
    rows = _read(spark, options, rows)  # lists them after their stamps: none is noted as longer than what is read
    with FinishedFiles(options) as finished:
        known = {} if options.restart else finished.read()
        left = [file for file, stamp in stamps.items() if known.get(file) != stamp]
        done = before = len(stamps) - len(left)
        on_progress(JobProgress("planned", before, len(stamps), "files"))
        total = RowCount()
        for start in range(0, len(left), options.files_per_step):
            step = left[start : start + options.files_per_step]
            count = _publish_files(_only(rows, step), options)
            total += count
            finished.save({file: stamps[file] for file in step})
            done += len(step)
            detail = f"files, {total.published + total.suppressed:,} rows"
            on_progress(JobProgress("published", done, len(stamps), detail))
    return _result(options, total, len(left), before)


def _result(options: BackfillOptions, count: RowCount, files: int, before: int) -> BackfillResult:
    return BackfillResult(
        queue=options.queue,
        source=options.source,
        rows=count.published + count.suppressed,
        published=count.published,
        suppressed=count.suppressed,
        files=files,
        files_done_before=before,
    )


# -- reading


def _open_source(spark: "SparkSession", options: BackfillOptions) -> "DataFrame":
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no stubs
    from pyspark.errors import PySparkException

    try:
        return spark.table(options.source) if options.format == "table" else _read(spark, options)
    except (PySparkException, Py4JJavaError) as error:
        raise SelectionError(f"the source {options.source!r} cannot be read: {reason(str(error))}") from error


def _reads_lines(options: BackfillOptions) -> bool:
    """Return whether a payload is a line as it is, which Spark need not parse."""
    parsed = options.payload_column is not None or options.schema is not None or options.reader_options
    return options.format == "text" or (options.format == "json" and not parsed)


def _read(spark: "SparkSession", options: BackfillOptions, like: "DataFrame | None" = None) -> "DataFrame":
    form = "text" if _reads_lines(options) else options.format
    reader = spark.read.format(form).options(**_READER_DEFAULTS[form]).options(**options.reader_options)
    schema = options.schema if like is None else like.schema
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(options.source)


def _only(rows: "DataFrame", files: Sequence[str]) -> "DataFrame":
    """Return the rows of some files of the source. Spark opens no others.

    They are not read by their paths: Spark would take a `?` in a name for a pattern, and not know from which directory
    on the names of directories are columns.
    """
    from pyspark.sql.functions import col

    # A local file is file:///a among the files of the source, and file:/a in the column.
    spellings = {spelling for file in files for spelling in (file, file.replace(":///", ":/", 1))}
    return rows.where(col("_metadata.file_path").isin(*sorted(spellings)))


def _check_columns(rows: "DataFrame", options: BackfillOptions) -> None:
    columns = rows.columns
    wanted = ("payload_column", "dedup_key_column", "tenant_column")
    if _reads_lines(options):
        columns = [one for one in columns if one != _LINE]
        if options.format == "json" and any(getattr(options, one) not in (None, *columns) for one in wanted):
            columns += _fields_of(rows)
    for option in wanted:
        column = getattr(options, option)
        if column is not None and column not in columns:
            raise SelectionError(f"{option} {column!r} is not a column of the source: {', '.join(columns)}")


_LINE = "value"  # as Spark names the column of a line


def _fields_of(lines: "DataFrame") -> list[str]:
    """Return the fields that the first lines have."""
    names: dict[str, None] = {}
    for row in lines.select(_LINE).limit(_SAMPLE_LINES).collect():
        try:
            found = json.loads(row[_LINE])
        except ValueError:  # the task that reads the line says where it is
            continue
        names.update(dict.fromkeys(found if isinstance(found, dict) else ()))
    return list(names)


# -- publishing


def _publish_files(rows: "DataFrame", options: BackfillOptions) -> RowCount:
    """Publish the rows of files, in the order of each file."""
    lines = _line_reader(rows, options)
    given = {name for name, _ in lines.columns} if lines else set()
    found = rows.selectExpr(
        f"cast({_LINE} as binary) as payload" if lines else f"{_payload(rows, options)} as payload",
        f"{_text(None if 'tenant' in given else options.tenant_column)} as tenant",
        f"{_text(None if 'key' in given else options.dedup_key_column)} as key",
        "cast(null as string) as extras",
        "_metadata.file_path as file",
        "_metadata.file_block_start as start",
    )

    def publish(batches: Iterator[pa.RecordBatch]) -> RowCount:
        read = _read_rows if lines is None else lines.read
        if options.dedup_key_column is None:
            return publish_splits((row for batch in batches for row in read(batch)), options)
        with BulkPublisher(options) as publisher:
            for batch in batches:
                publisher.publish(*messages_of(row for row in read(batch) if row["payload"] is not None))
        return RowCount(published=publisher.count.published, suppressed=publisher.count.suppressed)

    with same_splits(rows.sparkSession):
        try:
            with translate_errors("the backfill"):
                return sum_of_tasks(found, publish)
        except PayloadValueError as error:
            raise _with_line_number(rows, error) from error


def _read_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist():
        if row["payload"] is None:
            raise PayloadValueError(f"a row of {row['file']} has no payload; leave such rows out")
        yield row


def _line_reader(rows: "DataFrame", options: BackfillOptions) -> LineReader | None:
    """Return what reads the lines of a task, or None if Spark reads rows. A column may be in a directory's name too."""
    if not _reads_lines(options):
        return None
    fields = {"tenant": options.tenant_column, "key": options.dedup_key_column}
    own = tuple((name, column) for name, column in fields.items() if column is not None and column not in rows.columns)
    return LineReader(options.format == "json", own)


def _with_line_number(rows: "DataFrame", error: PayloadValueError) -> PayloadValueError:
    """Count the lines before the split that a bad line is in."""
    bad = BadLine.of(error)
    if bad is None:
        return error
    from pyspark.sql.functions import col

    earlier = rows.where((col("_metadata.file_path") == bad.file) & (col("_metadata.file_block_start") < bad.start))
    number = bad.row + (earlier.count() if bad.start else 0)
    return PayloadValueError(f"line {number:,} of {bad.file} is not JSON: {bad.why}")


def _publish_table(rows: "DataFrame", options: BackfillOptions) -> RowCount:
    """Publish the rows of a table. Without a key column their keys are made from their content."""
    found = rows.selectExpr(
        f"{_payload(rows, options)} as payload",
        f"{_text(options.tenant_column)} as tenant",
        f"{_text(options.dedup_key_column)} as key",
    )
    if options.dedup_key_column is None:
        place = "row_number() over (partition by payload, tenant order by payload)"
        parts = f"concat_ws('|', '{options.label}', '', coalesce(tenant, ''), sha2(payload, 256), {place})"
        found = found.selectExpr("payload", "tenant", f"concat('backfill:', sha2({parts}, 256)) as key")
    return publish_rows(found.selectExpr("payload", "tenant", "key", "cast(null as string) as extras"), options)


def _payload(rows: "DataFrame", options: BackfillOptions) -> str:
    """Return an expression: bytes as they are, text as UTF-8, structs, maps and arrays as JSON."""
    column, kind = "struct(*)", "struct"
    if options.payload_column is not None:
        column = _quoted(options.payload_column)
        kind = rows.schema[options.payload_column].dataType.typeName()
    if kind == "binary":
        return column
    if kind in ("struct", "map", "array"):
        column = f"to_json({column}, map('ignoreNullFields', 'false'))"
    return f"cast(cast({column} as string) as binary)"


def _text(column: str | None) -> str:
    return "cast(null as string)" if column is None else f"cast({_quoted(column)} as string)"


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


# -- progress


class FinishedFiles:
    """The finished files of a backfill, in a Redis hash: file to size and time of change."""

    def __init__(self, options: BackfillOptions) -> None:
        self._client: Any = options.connect()
        try:
            open_partitions(self._client, options)  # says what is wrong with the server, before a file is read
        except BaseException:
            self._client.close()
            raise
        self._seconds = max(1, int(options.message_deduplication_log_ttl_seconds))
        self.key = options.keys.backfill(options.label)

    def __enter__(self) -> "FinishedFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def read(self) -> dict[str, str]:
        """Return the finished files, with their stamps."""
        return {file.decode(): stamp.decode() for file, stamp in self._client.hgetall(self.key).items()}

    def save(self, done: Mapping[str, str]) -> None:
        """Add finished files, and keep all of them for as long as their deduplication keys."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self.key, mapping=dict(done))
            pipe.expire(self.key, self._seconds)
            pipe.execute()


def _stamp(spark: "SparkSession", file: str) -> str:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI.create(file))
    status = path.getFileSystem(spark._jsc.hadoopConfiguration()).getFileStatus(path)
    return json.dumps([status.getLen(), status.getModificationTime()])
