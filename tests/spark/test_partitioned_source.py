"""In Spark a query reads all partitions of a queue, and every message once, whatever crashes between two steps."""

from __future__ import annotations

import pytest
from pyspark.errors.exceptions.base import PySparkException

from redis_message_queue.stored.partitioning import partition_of
from tests.depth import often
from tests.pipeline.test_partitioned_source import queue
from tests.pipeline.test_source import QUEUE
from tests.spark.streaming_query import ALWAYS, NOW, doubled, numbered, start, written
from tests.spark.test_killed_drivers import KILLS, Driver

# On a busy machine the process of a source may need several attempts to connect: see `begun`.
pytestmark = [pytest.mark.topic("Streaming queries in Spark"), pytest.mark.timeout(900)]

__all__ = ["queue"]  # a fixture


@pytest.mark.promise("A query reads all partitions of a queue, each with a task of its own, and acks what it has read.")
def test_spark_reads_the_partitions_in_parallel_and_survives_the_death_of_its_source(spark, queue, server, tmp_path):
    """The process of the source is killed after the seal of a batch; in a full run after its commit, too."""
    queue.publish_many(numbered(240))
    for place in range(60):
        queue.publish(f"message {240 + place}", partition_key=str(place))
    assert all(queue.partition(number).stats().pending for number in range(3))
    options = {"url": server.url, "queue": QUEUE, "maxMessagesPerTrigger": 90, "leaseSeconds": 0.5}
    spark.sparkContext.setLogLevel("OFF")
    for death in ("latestOffset 3", "commit 3")[: often(1, 2)]:  # the sum of the numbers of all partitions
        query = start(spark, tmp_path, ALWAYS, die=death, **options)
        with pytest.raises(PySparkException):
            query.awaitTermination()
    start(spark, tmp_path, NOW, **options | {"maxMessagesPerTrigger": often(300, 90)}).awaitTermination()
    assert doubled(written(tmp_path)) == {}
    assert sorted(written(tmp_path)) == sorted(numbered(300))
    assert queue.stats().processing == 0


@pytest.mark.in_full  # as without partitions: see test_killed_drivers.py
@pytest.mark.timeout(1200 + 240 * KILLS)
@pytest.mark.promise("With files as the sink, every message is written once, however often driver and JVM are killed.")
def test_a_driver_over_partitions_is_killed_and_every_message_arrives_once(spark, queue, server, tmp_path):
    """By SIGKILL, between the seal of all partitions and the offset log."""
    for place in range(1_000):
        queue.publish(f"message {place}", tenant=f"tenant {place % 7}")
    assert len({partition_of(f"tenant {number}", 3) for number in range(7)}) == 3
    options = {"url": server.url, "queue": QUEUE, "maxMessagesPerTrigger": 300}
    assert Driver(tmp_path, ALWAYS, die="latestOffset 6", **options).wait() != 0
    assert len(written(tmp_path)) < 1_000
    start(spark, tmp_path, NOW, **options).awaitTermination()
    assert doubled(written(tmp_path)) == {}
    assert sorted(written(tmp_path)) == sorted(numbered(1_000))
    assert queue.stats().processing == 0
