"""Tasks archive the records of settled messages, each once, and a replay finds them."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from redis_message_queue.spark import tables
from redis_message_queue.spark.jobs import records
from redis_message_queue.spark.jobs.archive import ArchiveOptions, CompactOptions, archive, compact
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.lake import read_messages
from redis_message_queue.spark.jobs.records import read_records, records_table
from redis_message_queue.spark.jobs.replay import ReplayOptions, replay
from tests.pipeline.test_records import options, queue, settle
from tests.spark.shared_session import jobs_so_far

pytestmark = pytest.mark.topic("Data pipeline")


__all__ = ["options", "queue"]  # fixtures


def archived(spark: SparkSession, options: ArchiveOptions) -> list[dict[str, Any]]:
    return [row.asDict() for row in read_records(spark, options.path, options.queue).collect()]


@pytest.mark.promise(
    "The archive keeps the record of a settled message once, however a run dies, and a replay finds it by its error."
)
def test_tasks_archive_each_record_once_and_a_replay_finds_it_by_its_error(spark, queue, options, monkeypatch):
    """Two runs, a compaction, a list that was cut in between, and a replay by the text of an error."""
    monkeypatch.setattr(records, "DRIVER_ROW_LIMIT", -1)
    settle(queue, "c1", "f1", "d1")
    before = jobs_so_far(spark)
    assert archive(spark, options).records == 3
    assert jobs_so_far(spark) > before
    settle(queue, "c2", "f2")
    queue.purge("completed")
    assert archive(spark, options).records == 1
    assert archive(spark, options).records == 0

    found = archived(spark, options)
    assert sorted(row["list"] for row in found) == ["completed", "dead_letters", "failed", "failed"]
    assert {row["error"] for row in found if row["list"] == "failed"} == {"timeout of f1", "timeout of f2"}
    compact(CompactOptions(path=options.path, queue="orders"))
    assert sorted(row["id"] for row in archived(spark, options)) == sorted(row["id"] for row in found)
    assert [one.rows for one in records_table(location_of(options.path)).files("orders")] == [4]

    chosen = ReplayOptions(url=options.url, queue="orders", archive=options.path, where="'timeout of f2' in error")
    assert replay(spark, chosen).published == 1
    assert [record.payload for record in queue.peek()] == [b"f2"]
    rows = read_messages(spark, options.path, "orders").where("error is not null").collect()
    assert len(rows) == 2
    assert all("in settle\n" in row.traceback and row.traceback.endswith(row.error) for row in rows)


def test_long_lists_are_read_by_several_tasks(spark, queue, options, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_A_TASK", 7)
    monkeypatch.setattr(records, "DRIVER_ROW_LIMIT", -1)
    settle(queue, *(f"c{number}" for number in range(20)))
    assert archive(spark, options).records == 20
    assert len({row["id"] for row in archived(spark, options)}) == 20
