"""What a condition selects is published again, with its lineage, at the asked rate, and once for one selection."""

import time
from typing import cast

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.job_options import digest
from redis_message_queue.spark.jobs.publishing import COLUMNS, messages_of, pause, publish_at_rate
from redis_message_queue.spark.jobs.replay import ReplayOptions
from redis_message_queue.spark.options import PublishOptions
from redis_message_queue.spark.sink import BulkPublisher, PublishCount
from redis_message_queue.values.errors import ConfigurationError, PayloadValueError

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def queue(client):
    return RedisMessageQueue("orders", client=client, max_delivery_count=1)


def waiting(queue: RedisMessageQueue) -> dict[str, tuple[str | None, str | None]]:
    """What waits: payload to tenant and lineage."""
    return {cast(bytes, one.payload).decode(): (one.tenant, one.replay_of) for one in queue.peek(1_000)}


# Dead letters


# Publishing, without Spark


def test_a_key_is_published_once(server, client):
    options = PublishOptions(url=server.url, queue="orders", batch_size=2)
    rows = [("a", "acme", "1", None), ("b", None, "2", '{"replay_of": "x"}'), ("c", "acme", "1", None)]
    with BulkPublisher(options) as publisher:
        publisher.publish(*messages_of(dict(zip(COLUMNS, (one[0].encode(), *one[1:]), strict=True)) for one in rows))
    assert publisher.count == PublishCount(2, 1)
    queue = RedisMessageQueue("orders", client=client)
    assert waiting(queue) == {"a": ("acme", None), "b": (None, "x")}


@pytest.mark.parametrize(
    ("elapsed", "published", "seconds"), [(0.0, 5, 1.0), (0.4, 5, 0.6), (3.0, 5, 0.0), (1.0, 0, 0.0)]
)
def test_a_pause_is_as_long_as_what_was_published_needs(elapsed, published, seconds):
    assert pause(elapsed, published, rate=5) == pytest.approx(seconds)


def test_a_rate_is_kept_over_all_batches_and_what_was_published_before_takes_no_time(server, client):
    options = PublishOptions(url=server.url, queue="orders", batch_size=2)
    rows = [{"id": "i", "payload": b"x", "tenant": None, "key": str(place), "extras": None} for place in range(11)]
    heard, begun = [], time.monotonic()
    done = publish_at_rate(options, [*rows, {"id": "i", "payload": None}], 50, heard.append)
    assert (done.rows, done.published, done.suppressed, done.without_payload) == (12, 11, 0, 1)
    assert time.monotonic() - begun >= 0.2
    assert heard == [2, 4, 6, 8, 10, 11]
    again = publish_at_rate(options, rows, 0.001, heard.append)
    assert (again.published, again.suppressed) == (0, 11)


@pytest.mark.parametrize(
    ("changed", "said"), [({"key": None}, "no deduplication key"), ({"payload": None}, "'k' has no payload")]
)
def test_a_row_without_key_or_payload_is_refused(changed, said):
    with pytest.raises(PayloadValueError, match=said):
        messages_of([{"payload": b"x", "tenant": None, "key": "k", "extras": None} | changed])


def test_different_texts_have_different_digests():
    assert digest("a", "bc") != digest("ab", "c")


@pytest.mark.parametrize(
    "given",
    [
        {"archive": ""},
        {"rate": 0},
        {"where": " "},
        {"limit": 0},
        {"dry_run": 1},
        {"name": "in March"},
        {"message_deduplication_log_ttl_seconds": 0},
    ],
)
def test_options_that_cannot_work_are_refused(given):
    with pytest.raises(ConfigurationError):
        ReplayOptions(**{"url": "redis://localhost", "queue": "orders"} | given)
