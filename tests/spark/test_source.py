"""In Spark every message reaches the sink exactly once, whatever crashes, and the progress is correct."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors.exceptions.base import PySparkException

from redis_message_queue.spark import QueueListener, StreamProgress
from redis_message_queue.spark.prometheus import StreamMetrics
from tests.depth import FULL, often
from tests.pipeline.test_source import GROUP, QUEUE, queue
from tests.spark.streaming_query import ALWAYS, NOW, doubled, numbered, start, wait_for, written

# On a busy machine the process of a source may need several attempts to connect: see `begun`.
pytestmark = [pytest.mark.topic("Streaming queries in Spark"), pytest.mark.timeout(900)]


__all__ = ["queue"]  # a fixture


def test_available_now_brings_every_column_and_ends(spark, queue, server, tmp_path):
    queue.publish_many(["first", "second"])
    queue.publish("third", tenant="acme")
    start(spark, tmp_path, NOW, url=server.url, queue=QUEUE, minPartitions=2).awaitTermination()
    got = {row.payload: row for row in spark.read.parquet(str(tmp_path / "rows")).collect()}
    assert got.keys() == {"first", "second", "third"}
    assert {(row.tenant, row.delivery_count, row.queue) for row in got.values()} == {
        (None, 1, QUEUE),
        ("acme", 1, QUEUE),
    }
    assert all(len(row.id) == 32 and row.published_at is not None for row in got.values())
    queue.publish("fourth")
    start(spark, tmp_path, NOW, url=server.url, queue=QUEUE).awaitTermination()
    assert sorted(written(tmp_path)) == ["first", "fourth", "second", "third"]
    assert queue.stats().processing == 0  # Spark commits no last batch; but it asks once more, in vain


@pytest.mark.promise("The progress of a streaming query says what it has claimed, replayed, acked and released.")
def test_a_running_query_takes_what_comes_and_shows_its_progress(spark, queue, server, tmp_path):
    queue.publish_many(numbered(20))
    registry = CollectorRegistry()
    heard: list[StreamProgress] = []
    metrics = StreamMetrics(registry=registry)

    def hear(progress: StreamProgress) -> None:
        metrics.on_progress(progress)
        heard.append(progress)

    listener = QueueListener(hear)
    spark.streams.addListener(listener)
    trigger = {"processingTime": "100 milliseconds"}
    options = {"url": server.url, "queue": QUEUE, "maxMessagesPerTrigger": 10}
    query = start(spark, tmp_path, trigger, **options)
    try:
        wait_for(lambda: len(written(tmp_path)) == 20, query)
        queue.publish_many(numbered(10, 20))
        wait_for(lambda: len(written(tmp_path)) == 30, query)
        wait_for(lambda: heard and heard[-1].claimed == 30, query)
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    assert {(one.queue, one.consumer_group, one.run_id) for one in heard} == {(QUEUE, GROUP, query.runId)}
    assert (heard[-1].replayed, heard[-1].released, heard[-1].lag) == (0, 0, 0)
    assert heard[-1].acked >= 20  # the last batch is acked when Spark looks for the next one
    labels = {"queue": QUEUE, "consumer_group": GROUP}
    assert registry.get_sample_value("rmq_stream_claimed_total", labels) == 30
    assert registry.get_sample_value("rmq_stream_acked_total", labels) == heard[-1].acked
    assert registry.get_sample_value("rmq_stream_lag", labels) == 0
    assert sorted(written(tmp_path)) == sorted(numbered(30))


@pytest.mark.promise("With files as the sink, every message is written once, however often driver and JVM are killed.")
def test_the_source_dies_in_every_window_and_every_message_arrives_once(spark, queue, server, tmp_path):
    """One checkpoint; the source's process is killed where Spark has just asked it for something."""
    total = often(160, 400)
    queue.publish_many(numbered(total))
    options = {"url": server.url, "queue": QUEUE, "maxMessagesPerTrigger": 50, "leaseSeconds": 0.5}
    spark.sparkContext.setLogLevel("OFF")
    places = ("partitions 1", "commit 2")  # between the two the source's process starts anew
    for place in (
        ("latestOffset 1", "partitions 2", "latestOffset 3", "before commit 3", "commit 4") if FULL else places
    ):
        query = start(spark, tmp_path, ALWAYS, die=place, **options)
        with pytest.raises(PySparkException):
            query.awaitTermination()
    start(spark, tmp_path, NOW, **options | {"maxMessagesPerTrigger": total}).awaitTermination()
    assert doubled(written(tmp_path)) == {}
    assert sorted(written(tmp_path)) == sorted(numbered(total))


@pytest.mark.promise("A task that fails halfway is repeated with the same messages.")
def test_a_task_that_fails_half_way_is_repeated_with_the_same_messages(spark, queue, server, tmp_path):
    queue.publish_many(numbered(12_000))
    options = {"url": server.url, "queue": QUEUE, "minPartitions": 2, "die": "read 1"}
    spark.sparkContext.setLogLevel("OFF")
    start(spark, tmp_path, NOW, **options).awaitTermination()
    assert sorted(written(tmp_path)) == sorted(numbered(12_000))


@pytest.mark.promise("Missing messages of a batch raise `DataLossError`, or are skipped with `failOnDataLoss=false`.")
def test_lost_data_is_one_clear_error(spark, queue, server, client, tmp_path):
    queue.publish_many(numbered(10))
    spark.sparkContext.setLogLevel("OFF")
    start(spark, tmp_path, NOW, url=server.url, queue=QUEUE).awaitTermination()
    client.flushall()
    with pytest.raises(PySparkException, match=r"DataLossError: queue 'orders', consumerGroup 'reports': batch 1 is"):
        start(spark, tmp_path, NOW, url=server.url, queue=QUEUE).awaitTermination()
