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

from redis_message_queue.spark.job_options import AcknowledgeOptions, OverviewOptions, ReportOptions, Window
from redis_message_queue.spark.jobs.archive import archived_queues, journal_files
from redis_message_queue.spark.jobs.archive_tables import Location, location_of
from redis_message_queue.spark.jobs.job import (
    JobProgress,
    JobResult,
    OnProgress,
    ignore_progress,
    own_session,
    require_classic,
    translate_errors,
)
from redis_message_queue.spark.jobs.lake import SPREADS, STATES, Lake
from redis_message_queue.spark.jobs.page import render_overview, render_page
from redis_message_queue.spark.jobs.refresh import refresh_tables
from redis_message_queue.spark.jobs.statistics import COUNTED, ReportStatistics, Statistics
from redis_message_queue.spark.jobs.verdict import Row, accounts_of, judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "AcknowledgeOptions",
    "AcknowledgeResult",
    "OverviewOptions",
    "OverviewResult",
    "ReportOptions",
    "ReportResult",
    "Window",
    "acknowledge",
    "overview",
    "report",
    "statistics_of",
]

_TIME, _TEXT, _COUNT, _NUMBER = pa.timestamp("us", tz="UTC"), pa.string(), pa.int64(), pa.float64()
# All other columns are counts.
_TIMES = {"start", "first_at", "last_at", "after_at", "before_at"}
_TEXTS = {
    *("queue", "directory", "verdict", "because", "tenant", "consumer", "error_type", "error", "reason", "newest_id"),
    *("account", "journal"),
}
_QUANTILES = {name: tuple(f"{name}_p{one}" for one in (50, 95, 99)) for name in SPREADS}
_NUMBERS = {
    *("share", "error_ratio", "fairness", "seconds"),
    *(column for columns in _QUANTILES.values() for column in columns),
}
_OVERVIEW = (
    *("entries", "published", "acked", "failed", "dead", "errors", "outcomes", "error_ratio", "duplicates"),
    *("tenants", "fairness", "waiting_p50", "waiting_p95", "handler_p50", "handler_p95"),
    *(*STATES, "backlog", "peak"),
)
_COLUMNS = {
    "over_time": (
        *("start", "seconds", *COUNTED, "outcomes", "errors", "removed", *STATES, "backlog", "peak"),
        *(column for columns in _QUANTILES.values() for column in columns),
    ),
    "tenants": ("tenant", *COUNTED, "served", "demand", "share", *_QUANTILES["waiting"], *_QUANTILES["handler"]),
    "tenants_over_time": ("start", "tenant", "published", "delivered", "acked", "failed", "dead"),
    "consumers": (
        *("consumer", "delivered", "acked", "failed", "retried", "dead", "errors", "outcomes", "first_at", "last_at"),
    ),
    "failures": ("error_type", "failed", "retried", "dead", "total", "messages", "error"),
    "dead_letters": ("error_type", "reason", "letters", "tenants", "first_at", "last_at", "newest_id", "error"),
    "conservation": ("account", "messages"),
    "missing": ("journal", "first_serial", "count", "after_at", "before_at"),
    "overview": ("queue", "directory", "verdict", "because", "first_at", "last_at", *_OVERVIEW),
}


@dataclass(frozen=True, kw_only=True)
class AcknowledgeResult(JobResult):
    """The verdict before and after an operator has acknowledged what was wrong."""

    queue: str
    before: str
    because: str
    verdict: str


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
            timezone=options.timezone,
        )
        reports.append(_report(spark, one, window, ignore_progress))
        on_progress(JobProgress("reported", place, len(queues), queue))
    files = location_of(options.output, options.storage_options)
    rows = [_overview_row(one) for one in reports]
    files.write("index.html", render_overview(rows, window, datetime.now(UTC), options.zone).encode())
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
    row: Row = {name: summary[name] for name in _OVERVIEW}
    times = {name: datetime.fromisoformat(summary[name]) if summary[name] else None for name in ("first_at", "last_at")}
    directory = directory_of(one.queue)
    return {"queue": one.queue, "directory": directory, "verdict": one.verdict, "because": one.because} | (row | times)


def _report(spark: "SparkSession", options: ReportOptions, window: Window, on_progress: OnProgress) -> ReportResult:
    require_classic(spark, "the report")
    files = location_of(options.output, options.storage_options)
    location = location_of(options.path, options.storage_options, spark)
    journal_files(location, options.queue)
    files.create()  # before minutes of work
    with translate_errors("the report"):
        found = _statistics(spark, location, options.queue, window, on_progress)
    files.write("report.html", render_page(found, datetime.now(UTC), options.zone).encode())
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
    location = location_of(path, storage_options, spark)
    journal_files(location, queue)
    with translate_errors("the report"):
        return _statistics(spark, location, queue, window or Window(), on_progress)


def _statistics(
    spark: "SparkSession", location: Location, queue: str, window: Window, on_progress: OnProgress
) -> ReportStatistics:
    lake = Lake(location, queue)
    refresh_tables(spark, lake, on_progress)
    with own_session(spark) as own:
        found = Statistics(own, lake, window)
        try:
            return found.compute()
        finally:
            found.close()


def acknowledge(
    spark: "SparkSession", options: AcknowledgeOptions, on_progress: OnProgress = ignore_progress
) -> AcknowledgeResult:
    """Account for everything that a verdict names now: later verdicts are about what happens from here on.

    Raises:
        ArchiveError: The queue has no archive at this path, or files of it are missing or were changed.
    """
    require_classic(spark, "acknowledging")
    location = location_of(options.path, options.storage_options, spark)
    journal_files(location, options.queue)
    lake, now = Lake(location, options.queue), datetime.now(UTC)
    with translate_errors("acknowledging"):
        refresh_tables(spark, lake, on_progress)
        accounts = accounts_of(spark, lake)
    before = judge(accounts)
    absent = 0 if accounts.held is None else accounts.remaining - (accounts.held - accounts.foreign)
    done = lake.version(lake.incidents)
    common = {"at": now, "kind": "acknowledged", "reason": options.reason, "refresh": done}
    counts = {
        None: 0,
        "absent": absent - accounts.acknowledged("absent"),
        "foreign": accounts.foreign - accounts.acknowledged("foreign"),
    }
    rows = [{**common, "state": state, "messages": count} for state, count in counts.items() if count or state is None]
    lake.add_incidents(rows)
    return AcknowledgeResult(
        queue=options.queue,
        before=before.verdict,
        because=before.because,
        verdict=judge(accounts_of(spark, lake)).verdict,
    )


def _parquet(name: str, rows: list[dict[str, Any]]) -> bytes:
    schema = pa.schema([(column, _kind(column)) for column in _COLUMNS[name]])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    return buffer.getvalue()


def _kind(column: str) -> pa.DataType:
    kinds = ((_TIMES, _TIME), (_TEXTS, _TEXT), (_NUMBERS, _NUMBER))
    return next((kind for columns, kind in kinds if column in columns), _COUNT)


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
