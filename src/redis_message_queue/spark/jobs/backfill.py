"""Publishes the rows of files or of a table, each once, also if the job has to be run again.

A finished file is saved in Redis, and not read again unless it has changed. Every row has a deduplication key: that of
its column, or one made from its file, its content, and the number of equal rows before it in the file. That key is the
same in whatever order Spark reads the rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis_message_queue.errors import SelectionError
from redis_message_queue.spark.job_options import BackfillOptions
from redis_message_queue.spark.jobs.job import (
    JobProgress,
    JobResult,
    OnProgress,
    clear_errors,
    ignore_progress,
    reason,
    require_classic,
)
from redis_message_queue.spark.jobs.publishing import RowCount, publish_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BackfillOptions", "BackfillResult", "backfill"]

# A row that cannot be read ends the job: a message made of nulls would be noticed too late.
_READER_DEFAULTS: dict[str, dict[str, str]] = {
    "json": {"mode": "FAILFAST"},
    "csv": {"mode": "FAILFAST", "header": "true"},
    "parquet": {},
}


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
    with clear_errors("the backfill"):
        if options.format == "table":
            count = _publish(rows, options, "''")
            on_progress(JobProgress("published", count.published + count.suppressed))
            return _result(options, count, 0, 0)
        return _backfill_files(spark, rows, options, on_progress)


def _backfill_files(
    spark: "SparkSession", rows: "DataFrame", options: BackfillOptions, on_progress: OnProgress
) -> BackfillResult:
    """Publish a few files at a time, and save the progress after each step."""
    stamps = {file: _stamp(spark, file) for file in sorted(rows.inputFiles())}
    with FinishedFiles(options) as finished:
        known = {} if options.restart else finished.read()
        left = [file for file, stamp in stamps.items() if known.get(file) != stamp]
        done = before = len(stamps) - len(left)
        on_progress(JobProgress("planned", before, len(stamps), "files"))
        total = RowCount()
        for start in range(0, len(left), options.files_per_step):
            step = left[start : start + options.files_per_step]
            count = _publish(_read(spark, options, step, rows), options, "input_file_name()")
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
    from pyspark.errors import PySparkException

    try:
        return spark.table(options.source) if options.format == "table" else _read(spark, options, [options.source])
    except PySparkException as error:
        raise SelectionError(f"the source {options.source!r} cannot be read: {reason(str(error))}") from error


def _read(
    spark: "SparkSession", options: BackfillOptions, paths: Sequence[str], like: "DataFrame | None" = None
) -> "DataFrame":
    defaults = _READER_DEFAULTS[options.format]
    reader = spark.read.format(options.format).options(**defaults).options(**options.reader_options)
    if like is not None:
        # Columns in the names of directories are found from the start of the source.
        reader = reader.schema(like.schema)
        if not _is_file(like, options):
            reader = reader.option("basePath", options.source)
    elif options.schema is not None:
        reader = reader.schema(options.schema)
    return reader.load(list(paths))


def _is_file(rows: "DataFrame", options: BackfillOptions) -> bool:
    """Return whether the source is a file or a pattern, and has no directories below it."""
    return any(mark in options.source for mark in "*?[{") or any(
        file.endswith(options.source.rsplit("/", 1)[-1]) for file in rows.inputFiles()
    )


def _check_columns(rows: "DataFrame", options: BackfillOptions) -> None:
    for option in ("payload_column", "dedup_key_column", "tenant_column"):
        column = getattr(options, option)
        if column is not None and column not in rows.columns:
            raise SelectionError(f"{option} {column!r} is not a column of the source: {', '.join(rows.columns)}")


# -- publishing


def _publish(rows: "DataFrame", options: BackfillOptions, file: str) -> RowCount:
    """Publish rows. Without a key column their keys are made from ``file``, an expression, and their content."""
    found = rows.selectExpr(
        f"{_payload(rows, options)} as payload",
        f"{_text(options.tenant_column)} as tenant",
        f"{_text(options.dedup_key_column)} as key",
        f"{file} as file",
    )
    if options.dedup_key_column is None:
        place = "row_number() over (partition by file, payload, tenant order by payload)"
        parts = f"concat_ws('|', '{options.label}', file, coalesce(tenant, ''), sha2(payload, 256), {place})"
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
