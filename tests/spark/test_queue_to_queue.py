"""In Spark rows go from queue to queue once: after a repair, beside a copy of their task, and beside another query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark import register, translate_errors
from redis_message_queue.spark.driver import QUICK_START
from redis_message_queue.values.errors import ConsumerGroupBusyError, CorruptMessageError
from tests.pipeline.test_sink import waiting
from tests.pipeline.test_source import QUEUE, queue
from tests.spark.streaming_query import ALWAYS, NOW, begun, doubled, numbered, start, wait_for, written
from tests.spark.test_killed_drivers import spark_home

# On a busy machine the process of a source may need several attempts to connect: see `begun`.
pytestmark = [pytest.mark.topic("Streaming queries in Spark"), pytest.mark.timeout(900)]

__all__ = ["queue"]  # a fixture


def passed_on(spark: Any, url: str, directory: Path, **options: Any) -> Any:
    """A query from the queue into the queue `out`."""
    given = {"url": url, "queue": QUEUE, "leaseSeconds": "1"} | {name: str(value) for name, value in options.items()}
    stream = spark.readStream.format("redis_message_queue").options(**given).load().select("payload")
    sink = {"url": url, "queue": "out", "checkpointLocation": str(directory / "checkpoint")}
    return begun(stream.writeStream.format("redis_message_queue").options(**sink).trigger(availableNow=True))


@pytest.mark.promise(
    "A replay of a micro-batch reads the same rows in the same tasks, whatever the options are by then."
)
def test_a_query_that_is_repaired_with_other_options_publishes_each_row_once(spark, clean_server, client, tmp_path):
    """A payload that is not UTF-8 stops it when most of its tasks have published their rows."""
    register(spark)
    spark.sparkContext.setLogLevel("OFF")
    source = RedisMessageQueue(QUEUE, client=client, codec=bytes)
    texts = [f"message {number}".encode() for number in range(60)]
    source.publish_many([*texts[:3], *texts[3:50], b"\xff", *texts[50:]])
    with pytest.raises(CorruptMessageError), translate_errors():
        passed_on(spark, clean_server.url, tmp_path, minPartitions=6).awaitTermination()
    assert waiting(client), "no task had published anything"
    repaired = {"invalidPayloads": "dead_letters", "minPartitions": 4}
    passed_on(spark, clean_server.url, tmp_path, **repaired).awaitTermination()
    assert Counter(waiting(client)) == Counter(one.decode() for one in texts)
    assert (source.stats().dead_letters, source.stats().processing) == (1, 0)


@pytest.mark.promise("One query at a time owns a consumer group, and a replaced query can change nothing.")
def test_a_second_query_on_a_group_fails_in_one_line_and_the_first_goes_on(spark, queue, server, tmp_path):
    (tmp_path / "second").mkdir()
    spark.sparkContext.setLogLevel("OFF")
    queue.publish_many(numbered(20))
    options = {"url": server.url, "queue": QUEUE, "leaseSeconds": 2}
    first = start(spark, tmp_path, ALWAYS, **options)
    try:
        wait_for(lambda: len(written(tmp_path)) == 20, first)
        second = start(spark, tmp_path / "second", NOW, **options)
        with pytest.raises(ConsumerGroupBusyError, match="another running query holds"), translate_errors():
            second.awaitTermination()
        queue.publish_many(numbered(20, 20))
        wait_for(lambda: len(written(tmp_path)) == 40, first)
    finally:
        first.stop()
    assert doubled(written(tmp_path)) == {}
    assert written(tmp_path / "second") == []


COPIED_TASKS = """
import json, sys, time
from pathlib import Path
from redis_message_queue.spark import register, session

told = json.loads(sys.argv[1])
spark = session("speculation", "local-cluster[2,1,1024]", **told["conf"])
register(spark)
attempts = told["attempts"]


def slow_at_first(batches):
    from pyspark import TaskContext

    context = TaskContext.get()
    Path(attempts, f"{context.partitionId()}-{context.attemptNumber()}").touch()
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            deadline = time.monotonic() + 600
            while not Path(attempts, "0-1").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        yield batch.slice(batch.num_rows // 2)


rows = spark.readStream.text(told["lines"]).selectExpr("value as payload")
rows = rows.mapInArrow(slow_at_first, "payload string")
writer = rows.writeStream.format("redis_message_queue").options(**told["sink"]).trigger(availableNow=True)
writer.start().awaitTermination()
spark.stop()
"""


@pytest.mark.in_full
@pytest.mark.promise("A stream publishes each row once, also if Spark runs a second copy of a slow task.")
def test_a_copy_of_a_slow_task_publishes_no_row_twice(clean_server, client, tmp_path):
    """Spark copies tasks only with executors of their own. Both copies publish the same rows, one beside the other."""
    for name in ("lines", "attempts", "scratch"):
        (tmp_path / name).mkdir()
    payloads = [f"row {number % 50}" for number in range(400)]
    for half in range(4):
        (tmp_path / "lines" / f"{half}.txt").write_text("\n".join(payloads[half::4]), encoding="utf-8")
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.0",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "0ms",
        "spark.sql.files.openCostInBytes": "256000000",  # each file is a task
        "spark.local.dir": str(tmp_path / "scratch"),
    }
    sink = {"url": clean_server.url, "queue": "out", "checkpointLocation": str(tmp_path / "checkpoint")}
    told = {
        "conf": QUICK_START | speculation,
        "attempts": str(tmp_path / "attempts"),
        "lines": str(tmp_path / "lines"),
        "sink": sink,
    }
    environment = os.environ | {"SPARK_HOME": str(spark_home(tmp_path / "scratch"))}
    program = [sys.executable, "-c", COPIED_TASKS, json.dumps(told)]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=800)
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert (tmp_path / "attempts" / "0-1").exists(), "there was no copy"
    assert Counter(waiting(client)) == Counter(payloads)
