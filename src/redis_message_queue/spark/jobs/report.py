"""Reports from an archive what went through a queue: a page, tables and JSON."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from redis_message_queue.spark.job_options import ReportOptions
from redis_message_queue.spark.jobs.archive import application_of, journal_files, journal_table
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.inventory import read_inventory
from redis_message_queue.spark.jobs.job import JobProgress, JobResult, OnProgress, clear_errors, ignore_progress
from redis_message_queue.spark.jobs.page import render_page
from redis_message_queue.spark.jobs.statistics import COLUMNS, TIMES, ArchivedQueue, ReportStatistics, compute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ReportOptions", "ReportResult", "report", "statistics_of"]

_TIME, _TEXT, _COUNT, _NUMBER = pa.timestamp("us", tz="UTC"), pa.string(), pa.int64(), pa.float64()
# All other columns are counts.
_TEXTS = {"tenant", "error_type", "reason", "newest_id", "account", "journal"}
_NUMBERS = {"share", *(f"{name}_p{one}" for name in ("waiting", "processing") for one in (50, 95, 99))}
_OVER_TIME = (
    *("published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped"),
    *("removed", "backlog", "waiting_p50", "waiting_p95", "waiting_p99"),
    *("processing_p50", "processing_p95", "processing_p99"),
)
_COLUMNS = {
    "minutes": ("minute", *_OVER_TIME),
    "seconds": ("second", *_OVER_TIME),  # only of a short journal
    "tenants": (
        *("tenant", "published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped"),
        *("share", "waiting_p50", "waiting_p95", "waiting_p99"),
    ),
    "failures": ("error_type", "failed", "retried", "dead", "total", "messages"),
    "dead_letters": ("error_type", "reason", "letters", "tenants", "first_at", "last_at", "newest_id"),
    "conservation": ("account", "messages"),
    "missing": ("journal", "first_serial", "count"),
}


@dataclass(frozen=True, kw_only=True)
class ReportResult(JobResult):
    """Where the report is, and its verdict."""

    queue: str
    page: str
    json: str
    tables: dict[str, str]
    verdict: str
    because: str
    entries: int
    statistics: dict[str, Any] = field(repr=False)  # the content of report.json


def report(spark: "SparkSession", options: ReportOptions, on_progress: OnProgress = ignore_progress) -> ReportResult:
    """Write `report.html`, `report.json` and one Parquet file per table into the output directory.

    Raises:
        ArchiveError: The queue has no archive at this path, or files of it are missing or were changed.
    """
    with clear_errors("the report"):
        found = statistics_of(spark, options.path, options.queue, on_progress, options.storage_options)
    files = location_of(options.output, options.storage_options)
    files.write("report.html", render_page(found, datetime.now(UTC)).encode())
    as_json = json.dumps(found.as_dict(), default=_as_json, indent=1)
    files.write("report.json", as_json.encode())
    tables = {name: f"{name}.parquet" for name in found.tables}
    for name, file in tables.items():
        files.write(file, _parquet(name, found.tables[name]))
    on_progress(JobProgress("written", len(tables) + 2, len(tables) + 2, f"{files.uri}/report.html"))
    conservation = found.summary["conservation"]
    return ReportResult(
        queue=options.queue,
        page=f"{files.uri}/report.html",
        json=f"{files.uri}/report.json",
        tables={name: f"{files.uri}/{file}" for name, file in tables.items()},
        verdict=conservation["verdict"],
        because=conservation["because"],
        entries=found.summary["entries"],
        statistics=json.loads(as_json),
    )


def statistics_of(
    spark: "SparkSession",
    path: str,
    queue: str,
    on_progress: OnProgress = ignore_progress,
    storage_options: Mapping[str, str] | None = None,
) -> ReportStatistics:
    """Return the statistics alone, for a page of your own.

    Raises:
        ArchiveError: The queue has no archive at this path, or files of it are missing or were changed.
    """
    location = location_of(path, storage_options, spark)
    rows = sum(one.rows for one in journal_files(location, queue))
    table = journal_table(location)
    held, contents = read_inventory(spark, location, queue)
    delta = table.open_or_create()
    archived = ArchivedQueue(
        queue, rows, held, contents, lambda journal: delta.transaction_version(application_of(queue, journal)) or 0
    )
    return compute(table.read(spark, queue, COLUMNS), archived, on_progress)


def _parquet(name: str, rows: list[dict[str, Any]]) -> bytes:
    schema = pa.schema([(column, _kind(column)) for column in _COLUMNS[name]])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    return buffer.getvalue()


def _kind(column: str) -> pa.DataType:
    kinds = ((TIMES, _TIME), (_TEXTS, _TEXT), (_NUMBERS, _NUMBER))
    return next((kind for columns, kind in kinds if column in columns), _COUNT)


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
