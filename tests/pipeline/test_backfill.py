"""The rows of a split enter a queue once each, and a task that was broken off is gone on with."""

import random
from typing import Any

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.jobs.backfill import BackfillOptions
from redis_message_queue.spark.jobs.splits import SplitPublisher, SplitRow, publish_splits
from redis_message_queue.values.errors import ConfigurationError, QueueBackpressureError, SelectionError

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def queue(client):
    return RedisMessageQueue("orders", client=client)


class Stopped(Exception):
    """A run that is broken off."""


# The progress of a split, without Spark


def split_rows(first: int, last: int, tenant: str | None = None) -> list[dict]:
    return [
        {"payload": f"row {place}".encode(), "tenant": tenant, "file": "a.json", "start": 0}
        for place in range(first, last)
    ]


def split_options(server, **more) -> BackfillOptions:
    given: dict[str, Any] = {"url": server.url, "queue": "orders", "source": "a.json", "format": "json"}
    given["batch_size"] = 10
    return BackfillOptions(**given | more)


@pytest.mark.promise("A backfill publishes each row once and continues where it stopped.")
def test_two_tasks_on_one_split_publish_each_row_once(server, client, queue):
    """Whatever their batches are: one of them may belong to a run that is thought to be dead."""
    publishers = [SplitPublisher(split_options(server, batch_size=size)) for size in (10, 7)]
    rows = [SplitRow(f"row {place}".encode()) for place in range(100)]
    for one in publishers:
        one.begin("a.json", 0)
    pace = random.Random(5)
    left = [iter(rows), iter(rows)]
    ended = [False, False]
    while not all(ended):
        which = pace.randrange(2)
        row = next(left[which], None)
        if row is None:
            publishers[which].finish()
            ended[which] = True
        else:
            publishers[which].add(row)
    assert [one.payload for one in queue.peek(1_000)] == [row.payload for row in rows]
    assert sum(one.count.published for one in publishers) == 100
    assert all(one.count.published + one.count.suppressed == 100 for one in publishers)
    assert all(one.count.published for one in publishers)
    for one in publishers:
        one.__exit__()


def test_a_task_that_died_is_continued_in_the_middle_of_a_split(server, client, queue):
    def dies():
        yield from split_rows(0, 35, "acme")
        raise Stopped

    with pytest.raises(Stopped):
        publish_splits(dies(), split_options(server))
    assert queue.stats().pending == 30
    done = publish_splits(iter(split_rows(0, 50, "acme")), split_options(server, batch_size=3))
    assert (done.published, done.suppressed) == (20, 30)
    assert [one.payload for one in queue.peek(100)] == [row["payload"] for row in split_rows(0, 50)]
    assert {one.tenant for one in queue.peek(100)} == {"acme"}
    others = [*split_rows(0, 49, "acme"), *split_rows(7, 17, "acme")]
    for changed in (split_rows(0, 49, "acme"), split_rows(0, 60), others):
        with pytest.raises(SelectionError, match=r"a\.json has changed: its first 50 rows"):
            publish_splits(iter(changed), split_options(server))
    assert queue.stats().pending == 50


def test_a_split_waits_for_room_and_then_names_the_limit(server, client, queue):
    options = split_options(server, max_pending_length=15, pending_overload_block_timeout_seconds=0.05)
    with pytest.raises(QueueBackpressureError, match=r"full for 0\.05 s: max_pending_length is 15; 10 rows were"):
        publish_splits(iter(split_rows(0, 30)), options)
    assert queue.stats().pending == 10


def test_progress_that_was_deleted_or_damaged_is_an_error(server, client, queue):
    options = split_options(server)

    def deletes():
        yield from split_rows(0, 15)
        client.flushall()
        yield from split_rows(15, 30)

    with pytest.raises(SelectionError, match="the progress of this backfill was deleted while it ran"):
        publish_splits(deletes(), options)
    client.hset(options.keys.backfill(options.label), "a.json 0", "foreign")
    with pytest.raises(SelectionError, match="holds a foreign value"):
        publish_splits(iter(split_rows(0, 1)), options)


# Bad input


@pytest.mark.parametrize(
    "given",
    [{"format": "xml"}, {"source": ""}, {"files_per_step": 0}, {"reader_options": "x"}, {"tenant_column": " "}],
)
def test_options_that_cannot_work_are_refused(given):
    with pytest.raises(ConfigurationError):
        BackfillOptions(**{"url": "redis://localhost", "queue": "orders", "source": "x", "format": "json"} | given)
