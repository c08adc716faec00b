"""Rows of files and tables enter a queue once each, and a run that was broken off is gone on with."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.errors import (
    ConfigurationError,
    JobError,
    PayloadValueError,
    QueueBackpressureError,
    SelectionError,
)
from redis_message_queue.spark.jobs.backfill import BackfillOptions, FinishedFiles, backfill

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def queue(client):
    return RedisMessageQueue("orders", client=client)


def payloads(queue: RedisMessageQueue) -> Counter[str]:
    return Counter(cast(bytes, one.payload).decode() for one in queue.peek(10_000))


def json_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Stopped(Exception):
    """A run that is broken off."""


@pytest.mark.promise("A backfill publishes each row once and continues where it stopped.")
def test_an_interrupted_run_is_continued_file_by_file(spark, server, client, queue, tmp_path):
    for number in range(4):
        rows = [{"order": number * 10 + place, "who": f"t{place % 2}", "note": None} for place in range(10)]
        json_lines(tmp_path / f"{number}.json", rows)
    given = {"url": server.url, "queue": "orders", "source": str(tmp_path), "format": "json", "tenant_column": "who"}
    options = BackfillOptions(**given, dedup_key_column="order", files_per_step=2)

    def stop_after_the_first_step(progress):
        if progress.step == "published":
            raise Stopped

    with pytest.raises(Stopped):
        backfill(spark, options, stop_after_the_first_step)
    assert queue.stats().pending == 20
    heard = []
    done = backfill(spark, options, heard.append)
    assert (done.files_done_before, done.files, done.published, done.suppressed) == (2, 2, 20, 0)
    assert [(one.step, one.done, one.total) for one in heard] == [("planned", 2, 4), ("published", 4, 4)]
    assert payloads(queue) == {
        json.dumps({"note": None, "order": place, "who": f"t{place % 2}"}, separators=(",", ":")): 1
        for place in range(40)
    }
    assert {one.tenant for one in queue.peek(100)} == {"t0", "t1"}
    json.dumps(done.as_dict())

    json_lines(tmp_path / "3.json", [{"order": 39, "who": "t1"}, {"order": 40, "who": "t0"}])
    os.utime(tmp_path / "3.json", (1, 1))
    changed = backfill(spark, options)
    assert (changed.files, changed.published, changed.suppressed) == (1, 1, 1), "a changed file is read again"
    again = BackfillOptions(**given, dedup_key_column="order", restart=True)
    assert backfill(spark, again).published == 0, "whatever is read again, keys suppress what is there"


@pytest.mark.promise("A backfill publishes each row once and continues where it stopped.")
def test_without_a_key_column_equal_rows_are_as_many_as_they_are(spark, server, client, queue, tmp_path):
    """And a file that was half done is told apart row by row, whatever the order."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("text,size\nsame,1\nsame,1\nother,2\n")
    options = BackfillOptions(
        url=server.url, queue="orders", source=str(tmp_path), format="csv", payload_column="text", files_per_step=1
    )
    assert backfill(spark, options).published == 6
    assert payloads(queue) == {"same": 4, "other": 2}
    with FinishedFiles(options) as finished:
        client.delete(finished.key)
    lost = backfill(spark, options)
    assert (lost.published, lost.suppressed) == (0, 6)


def test_parquet_in_directories_by_column_and_a_table_are_sources_too(spark, server, client, queue, tmp_path):
    for day in ("2026-01-01", "2026-01-02"):
        (tmp_path / "p" / f"day={day}").mkdir(parents=True)
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "p" / f"day={day}" / "x.parquet")
    options = BackfillOptions(url=server.url, queue="orders", source=str(tmp_path / "p"), format="parquet")
    assert backfill(spark, options).published == 4
    assert {json.loads(one)["day"] for one in payloads(queue)} == {"2026-01-01", "2026-01-02"}
    spark.range(5).createOrReplaceTempView("numbers")
    table = BackfillOptions(
        url=server.url, queue="orders", source="numbers", format="table", payload_column="id", dedup_key_column="id"
    )
    assert backfill(spark, table).published == 5
    assert backfill(spark, table).suppressed == 5


def test_a_full_queue_is_waited_for_and_then_named(spark, server, client, queue):
    spark.range(0, 30, 1, 1).createOrReplaceTempView("many")
    options = BackfillOptions(
        url=server.url,
        queue="orders",
        source="many",
        format="table",
        payload_column="id",
        dedup_key_column="id",
        max_pending_length=10,
        pending_overload_block_timeout_seconds=0.1,
    )
    with pytest.raises(QueueBackpressureError, match=r"the queue is full for 0\.1 s: max_pending_length is 10"):
        backfill(spark, options)
    assert queue.stats().pending == 10


# Bad input


def test_bad_rows_and_sources_are_one_clear_error_each(spark, server, client, tmp_path):
    given = {"url": server.url, "queue": "orders", "format": "json"}
    with pytest.raises(SelectionError, match=r"the source '.*nowhere' cannot be read: \[PATH_NOT_FOUND\]"):
        backfill(spark, BackfillOptions(**given, source=str(tmp_path / "nowhere")))
    json_lines(tmp_path / "one.json", [{"k": "a"}, {"k": None}])
    source = str(tmp_path / "one.json")
    with pytest.raises(SelectionError, match=r"dedup_key_column 'key' is not a column of the source: k"):
        backfill(spark, BackfillOptions(**given, source=source, dedup_key_column="key"))
    with pytest.raises(PayloadValueError, match="a row has no deduplication key"):
        backfill(spark, BackfillOptions(**given, source=source, dedup_key_column="k"))
    (tmp_path / "bad.json").write_text('{"k": "a"}\n{"k": ')
    with pytest.raises(JobError, match=r"the backfill failed: \[FAILED_READ_FILE.*bad\.json.* \[MALFORMED_RECORD"):
        backfill(spark, BackfillOptions(**given, source=str(tmp_path / "bad.json"), schema="k string"))


@pytest.mark.parametrize(
    "given",
    [{"format": "xml"}, {"source": ""}, {"files_per_step": 0}, {"reader_options": "x"}, {"tenant_column": " "}],
)
def test_options_that_cannot_work_are_refused(given):
    with pytest.raises(ConfigurationError):
        BackfillOptions(**{"url": "redis://localhost", "queue": "orders", "source": "x", "format": "json"} | given)
