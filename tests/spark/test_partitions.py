"""Spark reads queues without partitions only: of a queue with partitions it would read a part, so it says so."""

from typing import Any

import pytest
import redis

from redis_message_queue import PartitionCountError, RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.spark.connection import RedisReader
from redis_message_queue.spark.consumer_group import ConsumerGroup
from redis_message_queue.spark.journal import JournalReader
from redis_message_queue.spark.options import QueueAddress, SourceOptions

pytestmark = pytest.mark.topic("Streaming queries in Spark")


@pytest.fixture
def address(clean_server: EmbeddedRedis, client: redis.Redis) -> dict[str, Any]:
    """A queue with partitions that has messages and a journal."""
    queue = RedisMessageQueue("orders", client=client, partitions=2, journal=True)
    queue.publish_many(["a", "b"])
    return {"url": clean_server.url, "queue": "orders"}


@pytest.mark.promise("Spark refuses a queue with partitions, and does not read or change a part of it.")
def test_a_queue_with_partitions_is_refused(address: dict[str, Any], client: redis.Redis) -> None:
    before = {key: client.dump(key) for key in client.keys("*")}
    with JournalReader(QueueAddress(**address)) as journal, pytest.raises(PartitionCountError, match="2 partitions"):
        journal.snapshot()
    reader = RedisReader(client, QueueAddress(**address).keys)
    with pytest.raises(PartitionCountError, match="Spark reads and writes queues without partitions only"):
        reader.read(("LLEN", "orders::dlq"))
    group = ConsumerGroup(client, SourceOptions(**address, consumer_group="g"))
    with pytest.raises(PartitionCountError, match="2 partitions"):
        group.acquire_group()
    assert {key: client.dump(key) for key in client.keys("*")} == before
