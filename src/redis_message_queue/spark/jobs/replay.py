"""Publishes selected dead letters or archived messages again, each once."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from redis_message_queue.spark.job_options import ReplayOptions
from redis_message_queue.spark.jobs.archive import journal_files
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.condition_columns import columns_of, condition_column
from redis_message_queue.spark.jobs.job import (
    JobProgress,
    JobResult,
    OnProgress,
    ignore_progress,
    reason,
    require_classic,
    translate_errors,
)
from redis_message_queue.spark.jobs.lake import Lake
from redis_message_queue.spark.jobs.publishing import RowCount, count_rows, publish_at_rate, publish_rows
from redis_message_queue.spark.jobs.refresh import refresh_tables
from redis_message_queue.spark.options import TableOptions
from redis_message_queue.spark.table_reader import read_table
from redis_message_queue.values.errors import SelectionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ReplayOptions", "ReplayResult", "replay"]


@dataclass(frozen=True, kw_only=True)
class ReplayResult(JobResult):
    """How many messages were selected and published."""

    queue: str
    into: str
    matched: int
    published: int
    suppressed: int  # published by an earlier replay
    without_payload: int
    without_id: int
    dry_run: bool
    examples: list[str]  # ids


def replay(spark: "SparkSession", options: ReplayOptions, on_progress: OnProgress = ignore_progress) -> ReplayResult:
    """Publish the selected messages again, each with `replay_of`. The selected messages stay where they are.

    A message is replayed into a queue once, whatever condition selects it, unless you ask for it again.

    Raises:
        SelectionError: The condition does not fit the columns, or no selected message has its payload in the archive.
        QueueBackpressureError: The queue stayed full. Run the job again.
    """
    require_classic(spark, "the replay")
    with translate_errors("the replay"):
        from_queue = options.archive is None
        found = dead_letters(spark, options) if from_queue else archived_messages(spark, options, on_progress)
        rows = _rows(select(found, options), options)
        if options.dry_run:
            count = count_rows(rows)
        elif options.rate is not None:
            # From the driver, in the order of publication: several tasks could not keep one rate.
            ordered = (row.asDict() for row in rows.orderBy("published_at", "id").toLocalIterator())
            count = publish_at_rate(
                options.target, ordered, options.rate, lambda done: on_progress(JobProgress("publishing", done))
            )
        else:
            count = publish_rows(rows.sortWithinPartitions("published_at", "id"), options.target, skip_incomplete=True)
    return _result(count, options, on_progress)


def _rows(chosen: "DataFrame", options: ReplayOptions) -> "DataFrame":
    """Return the columns that are published. A message that lacks its id or its payload has null there."""
    return chosen.selectExpr(
        *("payload", "tenant", "published_at", "id"),
        f"'{options.key_prefix}' || id as key",
        "to_json(struct(id as replay_of, headers)) as extras",
    )


def _result(count: RowCount, options: ReplayOptions, on_progress: OnProgress) -> ReplayResult:
    on_progress(JobProgress("published", count.published, count.rows))
    if count.rows and count.without_payload == count.rows:
        raise SelectionError(
            f"none of the {count.rows} selected messages has its payload in the archive. Open the queue with "
            'journal="payload" to keep payloads, or replay its dead letters.'
        )
    return ReplayResult(
        queue=options.queue,
        into=options.target.queue,
        matched=count.rows,
        published=count.published,
        suppressed=count.suppressed,
        without_payload=count.without_payload,
        without_id=count.without_id,
        dry_run=options.dry_run,
        examples=count.examples,
    )


# -- selecting


def select(found: "DataFrame", options: ReplayOptions) -> "DataFrame":
    """Return the rows for which the condition holds; with a limit, the oldest."""
    from pyspark.errors import AnalysisException

    chosen, parsed = found, options.condition
    try:
        if parsed is not None:
            chosen = found.where(condition_column(parsed))
        elif options.where is not None:
            chosen = found.where(options.where)
    except AnalysisException as error:
        raise SelectionError(
            f"where does not fit these columns: {reason(str(error))} Columns: {', '.join(found.columns)}."
        ) from error
    if options.limit is not None:
        chosen = chosen.orderBy("published_at", "id").limit(options.limit)
    return chosen


def dead_letters(spark: "SparkSession", options: ReplayOptions) -> "DataFrame":
    """Return the dead letters that the queue has now, with their records."""
    return read_table(spark, TableOptions(**options.address, table="dead_letters", payload_format="binary"))


def archived_messages(
    spark: "SparkSession", options: ReplayOptions, on_progress: OnProgress = ignore_progress
) -> "DataFrame":
    """Return one row per archived message: those that ended in the window, or all of them."""
    assert options.archive is not None  # see replay()
    location = location_of(options.archive, options.storage_options, spark)
    journal_files(location, options.queue)
    lake = Lake(location, options.queue)
    refresh_tables(spark, lake, on_progress)
    bounds = [time and time.astimezone(UTC) for time in (options.window().since, options.window().until)]
    if bounds == [None, None]:
        return lake.read_messages(spark, _needed(options))
    first, last = (time.date().isoformat() if time else default for time, default in zip(bounds, "09", strict=True))
    found = lake.messages.read(spark, options.queue, _needed(options), lambda one: first <= one.date <= last)
    for time, sign in zip(bounds, (">=", "<"), strict=True):
        found = found if time is None else found.where(f"finished_at {sign} timestamp'{time.isoformat()}'")
    return found


def _needed(options: ReplayOptions) -> Collection[str] | None:
    """Return the columns of messages that are published, or that the condition looks at."""
    if options.where is not None and options.condition is None:
        return None  # a Column does not tell
    named = () if options.condition is None else columns_of(options.condition)
    return {"id", "payload", "tenant", "published_at", "finished_at", "headers", *named}
