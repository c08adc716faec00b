"""Reports from an archive what went through a queue, or several: a page, and each table as Parquet and JSON."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from redis_message_queue.spark.job_options import OverviewOptions, ReportOptions, Window
from redis_message_queue.spark.jobs.archive import application_of, archived_queues, journal_files, journal_table
from redis_message_queue.spark.jobs.archive_tables import Location, location_of
from redis_message_queue.spark.jobs.figures import SPREADS, STATES
from redis_message_queue.spark.jobs.inventory import read_inventory
from redis_message_queue.spark.jobs.job import (
    JobProgress,
    JobResult,
    OnProgress,
    translate_errors,
    ignore_progress,
    require_classic,
)
from redis_message_queue.spark.jobs.kept_days import KeptDays, KeptFileError
from redis_message_queue.spark.jobs.page import render_overview, render_page
from redis_message_queue.spark.jobs.records import newest_error_texts
from redis_message_queue.spark.jobs.report_rows import TIMES, Row
from redis_message_queue.spark.jobs.statistics import ArchivedQueue, ReportStatistics, compute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "OverviewOptions",
    "OverviewResult",
    "ReportOptions",
    "ReportResult",
    "Window",
    "overview",
    "report",
    "statistics_of",
]

_TIME, _TEXT, _COUNT, _NUMBER = pa.timestamp("us", tz="UTC"), pa.string(), pa.int64(), pa.float64()
# All other columns are counts.
_TEXTS = {
    "queue",
    "directory",
    "verdict",
    "because",
    "tenant",
    "error_type",
    "error",
    "reason",
    "newest_id",
    "account",
    "journal",
}
_QUANTILES = {name: tuple(f"{name}_p{one}" for one in (50, 95, 99)) for name in SPREADS}
_NUMBERS = {"share", "error_ratio", "fairness", *(column for columns in _QUANTILES.values() for column in columns)}
_COUNTS = ("published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped")
_OVER_TIME = (
    *(*_COUNTS, "outcomes", "errors", "removed", *STATES, "backlog"),
    *(column for columns in _QUANTILES.values() for column in columns),
)
_OVERVIEW = (
    *("entries", "published", "acked", "failed", "dead", "errors", "outcomes", "error_ratio", "duplicates"),
    *("tenants", "fairness", "waiting_p50", "waiting_p95", "handler_p50", "handler_p95"),
)
_COLUMNS = {
    "minutes": ("minute", *_OVER_TIME),
    "seconds": ("second", *_OVER_TIME),  # only of a short journal
    "tenants": (
        *("tenant", *_COUNTS, "served", "demand", "share"),
        *(*_QUANTILES["waiting"], *_QUANTILES["handler"]),
    ),
    "tenants_over_time": ("minute", "second", "tenant", "published", "delivered", "acked", "failed", "dead"),
    "failures": ("error_type", "failed", "retried", "dead", "total", "messages", "error"),
    "dead_letters": ("error_type", "reason", "letters", "tenants", "first_at", "last_at", "newest_id", "error"),
    "conservation": ("account", "messages"),
    "missing": ("journal", "first_serial", "count", "after_at", "before_at"),
    "overview": (*("queue", "directory", "verdict", "because", "first_at", "last_at", *_OVERVIEW, *STATES, "backlog"),),
}


@dataclass(frozen=True, kw_only=True)
class ReportResult(JobResult):
    """Where the report is, and its verdict."""

    queue: str
    page: str
    json: str
    tables: dict[str, str]  # the Parquet file of each table; the same rows are beside it as JSON
    verdict: str
    because: str
    entries: int
    statistics: dict[str, Any] = field(repr=False)  # the content of report.json


@dataclass(frozen=True, kw_only=True)
class OverviewResult(JobResult):
    """Where the overview is, and the verdict on each queue."""

    page: str
    json: str
    table: str
    reports: list[ReportResult]

    @property
    def verdict(self) -> str:
        """The worst verdict of all queues."""
        found = {one.verdict for one in self.reports}
        return next((one for one in ("unbalanced", "unknown") if one in found), "balanced")


def report(spark: "SparkSession", options: ReportOptions, on_progress: OnProgress = ignore_progress) -> ReportResult:
    """Write `report.html`, `report.json`, and each table as Parquet and JSON into the output directory.

    Raises:
        ArchiveError: The queue has no archive at this path, or files of it are missing or were changed.
    """
    return _report(spark, options, options.window(), on_progress)


def overview(
    spark: "SparkSession", options: OverviewOptions, on_progress: OnProgress = ignore_progress
) -> OverviewResult:
    """Report on several queues of an archive: `index.html` compares them, and links to the report of each.

    Raises:
        ArchiveError: A queue has no archive at this path, or files of it are missing or were changed.
    """
    location = location_of(options.path, options.storage_options, spark)
    queues = list(options.queues) or archived_queues(location)
    window, reports = options.window(), []
    for place, queue in enumerate(queues, 1):
        one = ReportOptions(
            path=options.path,
            queue=queue,
            output=f"{options.output.rstrip('/')}/{directory_of(queue)}",
            storage_options=options.storage_options,
            fresh=options.fresh,
        )
        reports.append(_report(spark, one, window, ignore_progress))
        on_progress(JobProgress("reported", place, len(queues), queue))
    files = location_of(options.output, options.storage_options)
    rows = [_overview_row(one) for one in reports]
    files.write("index.html", render_overview(rows, window, datetime.now(UTC)).encode())
    files.write("overview.json", json.dumps(rows, default=_as_json, indent=1).encode())
    files.write("overview.parquet", _parquet("overview", rows))
    return OverviewResult(
        page=f"{files.uri}/index.html",
        json=f"{files.uri}/overview.json",
        table=f"{files.uri}/overview.parquet",
        reports=reports,
    )


def directory_of(queue: str) -> str:
    """Return the name of a directory for a queue, whatever characters its own name has."""
    return quote(queue, safe="").replace(".", "%2E")


def _overview_row(one: ReportResult) -> Row:
    summary = one.statistics["summary"]
    row: Row = {name: summary[name] for name in (*_OVERVIEW, *STATES, "backlog")}
    times = {name: datetime.fromisoformat(summary[name]) if summary[name] else None for name in ("first_at", "last_at")}
    directory = directory_of(one.queue)
    return {"queue": one.queue, "directory": directory, "verdict": one.verdict, "because": one.because} | (row | times)


def _report(spark: "SparkSession", options: ReportOptions, window: Window, on_progress: OnProgress) -> ReportResult:
    require_classic(spark, "the report")
    files = location_of(options.output, options.storage_options)
    journal_files(location_of(options.path, options.storage_options, spark), options.queue)
    files.create()  # before minutes of work
    with translate_errors("the report"):
        found = _statistics(spark, options, window, files.below("kept"), on_progress)
    files.write("report.html", render_page(found, datetime.now(UTC)).encode())
    as_json = json.dumps(found.as_dict(), default=_as_json, indent=1)
    files.write("report.json", as_json.encode())
    tables = {name: f"{name}.parquet" for name in found.tables}
    for name, file in tables.items():
        files.write(file, _parquet(name, found.tables[name]))
        files.write(f"{name}.json", json.dumps(found.tables[name], default=_as_json, indent=1).encode())
    on_progress(JobProgress("written", 2 * len(tables) + 2, 2 * len(tables) + 2, f"{files.uri}/report.html"))
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
    window: Window | None = None,
) -> ReportStatistics:
    """Return the statistics alone, for a page of your own.

    Raises:
        ArchiveError: The queue has no archive at this path, or files of it are missing or were changed.
    """
    return compute(spark, _archived(location_of(path, storage_options, spark), queue, spark), on_progress, window)


def _statistics(
    spark: "SparkSession", options: ReportOptions, window: Window, place: Location, on_progress: OnProgress
) -> ReportStatistics:
    """Return the statistics, with the days that an earlier report has kept."""
    location = location_of(options.path, options.storage_options, spark)
    # Its version of the table is not newer than the files: a change in between is then seen by the next report.
    kept = KeptDays(place, journal_table(location), options.queue, fresh=options.fresh)
    archived = _archived(location, options.queue, spark)
    try:
        return compute(spark, archived, on_progress, window, kept)
    except KeptFileError as error:
        on_progress(JobProgress("computing all days again", detail=str(error)))
        anew = KeptDays(place, archived.table, options.queue, fresh=True)
        return compute(spark, archived, on_progress, window, anew)


def _archived(location: Location, queue: str, spark: "SparkSession") -> ArchivedQueue:
    table = journal_table(location)
    files = journal_files(location, queue)
    table.check(files, queue)  # also those of days that are not read again
    delta = table.open()
    assert delta is not None  # it has files
    return ArchivedQueue(
        queue,
        table,
        files,
        *read_inventory(location, queue),
        lambda journal: delta.transaction_version(application_of(queue, journal)) or 0,
        lambda: newest_error_texts(spark, location, queue),
    )


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
