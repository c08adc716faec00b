"""The raw side of the Spark benchmark stores what the library stores, so that the two are comparable."""

import pytest
import redis

from bench.spark import QUEUE, publish_raw, read_raw
from redis_message_queue import RedisMessageQueue


@pytest.mark.parametrize("deduplicated", [True, False])
def test_messages_that_are_published_raw_are_messages_of_the_queue(client: redis.Redis, deduplicated: bool) -> None:
    publish_raw(client, ["one", "two"], deduplicated)
    read_raw(client)
    queue = RedisMessageQueue(QUEUE, client=client, deduplication=True, get_deduplication_key=lambda _: "1")
    assert queue.publish("two") is not deduplicated
    with queue.process_messages(2) as batch:
        assert [message.payload for message in batch] == [b"one", b"two"]
