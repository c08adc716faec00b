"""In Spark the sink publishes every row once, however often its task or its epoch is run again."""

import time
import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from redis import Redis

from tests.pipeline.test_sink import waiting


def failing_halfway(url, failures):
    """The first attempt of a task ends when a part of its rows is published; the second turns their order round."""

    def through(batches):
        rows = [row for batch in batches for row in batch.to_pylist()]
        schema = pa.schema([("payload", pa.string()), ("key", pa.string())])
        if TaskContext.get().attemptNumber() > 0:
            yield pa.RecordBatch.from_pylist(rows[::-1], schema)
            return
        with Redis.from_url(url) as client:
            before = client.llen("out::pending")
            for start in range(0, len(rows) // 2, 50):  # many: the last one waits in a buffer
                yield pa.RecordBatch.from_pylist(rows[start : start + 50], schema)
            deadline = time.monotonic() + 600
            while client.llen("out::pending") == before and time.monotonic() < deadline:
                time.sleep(0.01)
            if client.llen("out::pending") > before:
                Path(failures, uuid.uuid4().hex).touch()
        raise ValueError("fails halfway")

    return through


# So large that few fit into the buffers between two workers, where they would wait until the task ends.
# Equal rows are in both tasks: 299 and 29 are odd, and each task has every second row.
ROWS = [f"row {number % 299} {'x' * 2_000}" for number in range(1_000)]
FEW_ROWS = [f"row {number % 29}" for number in range(100)]


@pytest.fixture
def small_batches(spark):
    """Rows reach the sink fifty at a time, and each file is a task."""
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "50", "spark.sql.files.openCostInBytes": "256000000"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.parametrize("key", [False, pytest.param(True, marks=pytest.mark.in_full)])
def test_a_stream_whose_tasks_fail_halfway_and_see_another_order_publishes_each_row_once(
    small_batches, clean_server, client, tmp_path, key
):
    """With a key column and without one."""
    (failures := tmp_path / "failures").mkdir()
    write_lines(tmp_path / "in", ROWS)
    lines = small_batches.readStream.text(str(tmp_path / "in")).selectExpr(
        "split(value, '\t')[1] as payload", "split(value, '\t')[0] as key"
    )
    rows = lines.mapInArrow(failing_halfway(clean_server.url, str(failures)), "payload string, key string")
    run(rows, clean_server.url, tmp_path, **({"dedupKeyColumn": "key"} if key else {}))
    assert len(list(failures.iterdir())) == 2
    assert Counter(waiting(client)) == Counter(ROWS)


def write_lines(directory: Path, payloads):
    """Two files, which Spark reads in two tasks; each line has a key of its own."""
    directory.mkdir()
    for half in range(2):
        lines = [f"{number}\t{payload}" for number, payload in enumerate(payloads) if number % 2 == half]
        (directory / f"{half}.txt").write_text("\n".join(lines), encoding="utf-8")


def run(rows, url, directory, name="checkpoint", **options):
    """All there is in one go; the progress of the last batch."""
    query = start(rows, url, directory, name, **options)
    query.awaitTermination()
    return query.lastProgress


def start(rows, url, directory, name="checkpoint", **options):
    given = {"url": url, "queue": "out", "checkpointLocation": str(directory / name)} | options
    return rows.writeStream.format("redis_message_queue").options(**given).trigger(availableNow=True).start()


def test_a_replayed_epoch_publishes_nothing(small_batches, clean_server, client, tmp_path):
    """Killed between the sink's work and Spark's note of it: the batch runs again, whole."""
    write_lines(tmp_path / "in", FEW_ROWS)
    rows = small_batches.readStream.text(str(tmp_path / "in")).selectExpr("split(value, '\t')[1] as payload")
    run(rows, clean_server.url, tmp_path)
    for note in (tmp_path / "checkpoint" / "commits").iterdir():
        note.unlink()
    assert run(rows, clean_server.url, tmp_path)["numInputRows"] == len(FEW_ROWS)
    assert Counter(waiting(client)) == Counter(FEW_ROWS)


def test_two_queries_at_once_publish_each_key_once(small_batches, clean_server, client, tmp_path):
    write_lines(tmp_path / "in", FEW_ROWS)
    rows = small_batches.readStream.text(str(tmp_path / "in")).selectExpr(
        "split(value, '\t')[1] as payload", "split(value, '\t')[0] as key"
    )
    queries = [start(rows, clean_server.url, tmp_path, name, dedupKeyColumn="key") for name in ("one", "two")]
    for query in queries:
        query.awaitTermination()
        assert query.lastProgress["numInputRows"] == len(FEW_ROWS)
    assert Counter(waiting(client)) == Counter(FEW_ROWS)


def test_a_batch_whose_tasks_fail_halfway_publishes_each_key_once(small_batches, clean_server, client, tmp_path):
    (failures := tmp_path / "failures").mkdir()
    frame = small_batches.range(0, 1_000, 1, 2).selectExpr(
        "rpad(concat('row ', id), 2000, ' ') as payload", "string(id) as key"
    )
    rows = frame.mapInArrow(failing_halfway(clean_server.url, str(failures)), "payload string, key string")
    options = {"url": clean_server.url, "queue": "out", "dedupKeyColumn": "key"}
    rows.write.format("redis_message_queue").options(**options).mode("append").save()
    assert len(list(failures.iterdir())) == 2
    assert sorted(one.strip() for one in waiting(client)) == sorted(f"row {number}" for number in range(1_000))
