"""What went through a queue, told from its archive: tables, JSON, and a page that a person would want to open."""

import io
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from redis_message_queue import checks
from redis_message_queue.spark.jobs.archive import entries, manifest_of
from redis_message_queue.spark.jobs.clear_errors import one_clear_error
from redis_message_queue.spark.jobs.figures import TIMES, Figures, figures
from redis_message_queue.spark.jobs.files import files_at
from redis_message_queue.spark.jobs.page import everything, page
from redis_message_queue.spark.jobs.progress import JsonResult, OnProgress, Progress, unheard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIME, _TEXT, _COUNT, _NUMBER = pa.timestamp("us", tz="UTC"), pa.string(), pa.int64(), pa.float64()
# What is in none of these lists is a number of something.
_TEXTS = {"tenant", "error_type", "reason", "newest_id", "account"}
_NUMBERS = {"share", *(f"{name}_p{one}" for name in ("waiting", "processing") for one in (50, 95, 99))}
_OVER_TIME = (
    *("published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped"),
    *("removed", "backlog", "waiting_p50", "waiting_p95", "waiting_p99"),
    *("processing_p50", "processing_p95", "processing_p99"),
)
_COLUMNS = {
    "minutes": ("minute", *_OVER_TIME),
    "seconds": ("second", *_OVER_TIME),  # of a journal of a few minutes
    "tenants": (
        *("tenant", "published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped"),
        *("share", "waiting_p50", "waiting_p95", "waiting_p99"),
    ),
    "failures": ("error_type", "failed", "retried", "dead", "total", "messages"),
    "dead_letters": ("error_type", "reason", "letters", "tenants", "first_at", "last_at", "newest_id"),
    "conservation": ("account", "messages"),
    "missing": ("first_serial", "count"),
}


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What `report` needs to know."""

    path: str  # of the archive
    queue: str
    output: str  # a directory

    def __post_init__(self) -> None:
        checks.text("path", self.path)
        checks.text("queue", self.queue)
        checks.text("output", self.output)


@dataclass(frozen=True, kw_only=True)
class ReportResult(JsonResult):
    """Where the report is, and its verdict."""

    queue: str
    page: str
    json: str
    tables: dict[str, str]
    verdict: str
    because: str
    entries: int
    figures: dict[str, Any] = field(repr=False)  # what report.json has


def report(spark: "SparkSession", options: ReportOptions, on_progress: OnProgress = unheard) -> ReportResult:
    """Write `report.html`, `report.json` and one Parquet file a table into the output directory."""
    with one_clear_error("the report"):
        found = figures_of(spark, options.path, options.queue, on_progress)
    files = files_at(options.output, spark)
    files.write("report.html", page(found, datetime.now(UTC)).encode())
    told = json.dumps(everything(found), default=_as_json, indent=1)
    files.write("report.json", told.encode())
    tables = {name: f"{name}.parquet" for name in found.tables}
    for name, file in tables.items():
        files.write(file, _parquet(name, found.tables[name]))
    on_progress(Progress("written", len(tables) + 2, len(tables) + 2, f"{files.root}/report.html"))
    conservation = found.summary["conservation"]
    return ReportResult(
        queue=options.queue,
        page=f"{files.root}/report.html",
        json=f"{files.root}/report.json",
        tables={name: f"{files.root}/{file}" for name, file in tables.items()},
        verdict=conservation["verdict"],
        because=conservation["because"],
        entries=found.summary["entries"],
        figures=json.loads(told),
    )


def figures_of(spark: "SparkSession", path: str, queue: str, on_progress: OnProgress = unheard) -> Figures:
    """The figures alone, for those who draw their own pages."""
    manifest = manifest_of(files_at(path, spark), queue, path)
    return figures(entries(spark, path, manifest), manifest, on_progress)


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
