"""Rows of files or of a table into a queue, each once, also when the job has to be run again.

Two things make it resumable. A file that is done is noted in Redis and not read again unless it has changed. And every
row has a deduplication key: that of its column, or one made of its file, its content, and how often that content has
come before in the file, which is the same in whatever order Spark reads it.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from redis_message_queue import checks
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError, SelectionError
from redis_message_queue.spark.jobs.clear_errors import one_clear_error, reason
from redis_message_queue.spark.jobs.progress import JsonResult, OnProgress, Progress, unheard
from redis_message_queue.spark.jobs.publishing import OUTCOME, PublishOptions, digest, publish_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Format = Literal["json", "csv", "parquet", "table"]
# A row that cannot be read ends the job: a message made of nulls would be noticed too late.
_DEFAULTS: dict[str, dict[str, str]] = {
    "json": {"mode": "FAILFAST"},
    "csv": {"mode": "FAILFAST", "header": "true"},
    "parquet": {},
}


@dataclass(frozen=True, kw_only=True)
class BackfillOptions(PublishOptions):
    """What `backfill` needs to know. The payload is a column, or without one the whole row as a JSON object."""

    source: str  # a path, or the name of a table
    format: Format
    payload_column: str | None = None
    dedup_key_column: str | None = None
    tenant_column: str | None = None
    schema: str | None = None  # as Spark writes it: "id bigint, name string"
    reader_options: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None  # under which progress is kept; else the source
    files_per_step: int = 32  # after so many files progress is noted
    restart: bool = False  # read files again that are noted as done

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.text("source", self.source)
        if self.format not in get_args(Format):
            raise ConfigurationError(f"format must be one of {', '.join(get_args(Format))}, not {self.format!r}")
        for option in ("payload_column", "dedup_key_column", "tenant_column", "schema", "name"):
            if getattr(self, option) is not None:
                checks.text(option, getattr(self, option))
        if not isinstance(self.reader_options, Mapping):
            raise ConfigurationTypeError(f"reader_options must be a mapping, not {type(self.reader_options).__name__}")
        checks.whole_number("files_per_step", self.files_per_step)
        checks.flag("restart", self.restart)

    @property
    def label(self) -> str:
        """What keys and progress of this backfill are kept under."""
        return digest(self.name or self.source, self.format)


@dataclass(frozen=True, kw_only=True)
class BackfillResult(JsonResult):
    """What became of the rows, and which files were left out because they were done."""

    queue: str
    source: str
    rows: int
    published: int
    suppressed: int  # their keys had entered the queue before
    files: int
    files_done_before: int


def backfill(spark: "SparkSession", options: BackfillOptions, on_progress: OnProgress = unheard) -> BackfillResult:
    """Publish every row of the source that no earlier run has published."""
    rows = _opened(spark, options)
    _check_columns(rows, options)
    with one_clear_error("the backfill"):
        if options.format == "table":
            published, suppressed = _publish(rows, options, "''")
            on_progress(Progress("published", published + suppressed))
            return _result(options, published, suppressed, 0, 0)
        return _files(spark, rows, options, on_progress)


def _files(spark: "SparkSession", rows: "DataFrame", options: BackfillOptions, tell: OnProgress) -> BackfillResult:
    """A few files at a time, each group noted when all of it is in the queue."""
    stamps = {file: _stamp(spark, file) for file in sorted(rows.inputFiles())}
    with Notes(options) as notes:
        done = {} if options.restart else notes.read()
        left = [file for file, stamp in stamps.items() if done.get(file) != stamp]
        before = len(stamps) - len(left)
        tell(Progress("planned", before, len(stamps), "files"))
        published = suppressed = 0
        for group in _groups(left, options.files_per_step):
            sent = _publish(_read(spark, options, group, rows), options, "input_file_name()")
            published, suppressed = published + sent[0], suppressed + sent[1]
            notes.write({file: stamps[file] for file in group})
            before += len(group)
            tell(Progress("published", before, len(stamps), f"files, {published + suppressed:,} rows"))
    return _result(options, published, suppressed, len(left), len(stamps) - len(left))


def _groups(files: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (files[start : start + size] for start in range(0, len(files), size))


def _result(options: BackfillOptions, published: int, suppressed: int, files: int, before: int) -> BackfillResult:
    return BackfillResult(
        queue=options.queue,
        source=options.source,
        rows=published + suppressed,
        published=published,
        suppressed=suppressed,
        files=files,
        files_done_before=before,
    )


# -- reading


def _opened(spark: "SparkSession", options: BackfillOptions) -> "DataFrame":
    from pyspark.errors import PySparkException

    try:
        return spark.table(options.source) if options.format == "table" else _read(spark, options, [options.source])
    except PySparkException as error:
        raise SelectionError(f"the source {options.source!r} cannot be read: {reason(str(error))}") from error


def _read(
    spark: "SparkSession", options: BackfillOptions, paths: Sequence[str], like: "DataFrame | None" = None
) -> "DataFrame":
    reader = spark.read.format(options.format).options(**_DEFAULTS[options.format]).options(**options.reader_options)
    if like is not None:
        # Columns that stand in the names of directories are found from where the source begins.
        reader = reader.schema(like.schema)
        if not _is_file(like, options):
            reader = reader.option("basePath", options.source)
    elif options.schema is not None:
        reader = reader.schema(options.schema)
    return reader.load(list(paths))


def _is_file(rows: "DataFrame", options: BackfillOptions) -> bool:
    """Whether the source is itself a file, or a pattern, and has no directories below it."""
    return any(mark in options.source for mark in "*?[{") or any(
        file.endswith(options.source.rsplit("/", 1)[-1]) for file in rows.inputFiles()
    )


def _check_columns(rows: "DataFrame", options: BackfillOptions) -> None:
    for option in ("payload_column", "dedup_key_column", "tenant_column"):
        column = getattr(options, option)
        if column is not None and column not in rows.columns:
            raise SelectionError(f"{option} {column!r} is not a column of the source: {', '.join(rows.columns)}")


# -- publishing


def _publish(rows: "DataFrame", options: BackfillOptions, file: str) -> tuple[int, int]:
    """Publish rows; those without a key column get their keys from ``file``, content and occurrence."""
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
    sent = found.selectExpr("payload", "tenant", "key", "cast(null as string) as extras")
    told: Any = (
        sent.mapInArrow(publish_batches(_plain(options)), OUTCOME)
        .selectExpr("coalesce(sum(published), 0)", "coalesce(sum(suppressed), 0)")
        .first()
    )
    return told[0], told[1]


def _payload(rows: "DataFrame", options: BackfillOptions) -> str:
    """Bytes as they are, text as UTF-8, and what has fields or elements as JSON."""
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


def _plain(options: BackfillOptions) -> PublishOptions:
    return PublishOptions(**{one.name: getattr(options, one.name) for one in dataclasses.fields(PublishOptions)})


# -- what is done


class Notes:
    """Which files of a backfill are done, in a Redis HASH: file to size and time of change."""

    def __init__(self, options: BackfillOptions) -> None:
        self._client = options.connect()
        self._seconds = max(1, int(options.remember_seconds))
        self.key = options.keys.backfill(options.label)

    def __enter__(self) -> "Notes":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def read(self) -> dict[str, str]:
        return {file.decode(): stamp.decode() for file, stamp in self._client.hgetall(self.key).items()}

    def write(self, done: Mapping[str, str]) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self.key, mapping=dict(done))
            pipe.expire(self.key, self._seconds)
            pipe.execute()


def _stamp(spark: "SparkSession", file: str) -> str:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI.create(file))
    status = path.getFileSystem(spark._jsc.hadoopConfiguration()).getFileStatus(path)
    return json.dumps([status.getLen(), status.getModificationTime()])
