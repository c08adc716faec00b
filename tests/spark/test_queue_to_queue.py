"""In Spark rows go from queue to queue once, after a repair and beside another query on the same group."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark import register, translate_errors
from redis_message_queue.values.errors import ConsumerGroupBusyError, CorruptMessageError
from tests.pipeline.test_sink import waiting
from tests.pipeline.test_source import QUEUE, queue
from tests.spark.streaming_query import ALWAYS, NOW, begun, doubled, numbered, start, wait_for, written

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
