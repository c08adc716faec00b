"""`rmq partitions` shows and grows the partitions of a queue; the other commands find out how many there are."""

import pytest

from redis_message_queue import PartitionCountError, RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus

pytestmark = pytest.mark.topic("Command line")


@pytest.fixture
def queue(text_client):
    made = RedisMessageQueue("orders", client=text_client, partitions=3, message_wait_interval_seconds=0)
    for number in range(3):
        made.partition(number).publish(f"message {number}", tenant="acme" if number else None)
    return made


@pytest.mark.promise("`rmq` finds out how many partitions a queue has, and shows the whole of it.")
def test_commands_work_on_the_whole_queue(rmq, queue):
    (stats,) = rmq("stats", "orders", "--json").documents
    assert stats["pending"] == 3
    assert len(rmq("peek", "orders", "--json").documents) == 3
    assert [row["pending"] for row in rmq("queues", "--json").documents] == [3]
    found = rmq("tenants", "orders", "--json").documents
    assert [(row["partition"], row["tenant"], row["pending"]) for row in found] == [
        (0, None, 1),
        (1, "acme", 1),
        (2, "acme", 1),
    ]
    assert rmq("publish", "orders", "more", "--partition-key", "k").status == ExitStatus.OK
    assert rmq("pause", "orders").status == ExitStatus.OK
    assert queue.is_paused()
    assert rmq("resume", "orders").status == ExitStatus.OK
    assert len(rmq("consume", "orders", "--json").documents) == 4
    assert rmq("publish", "orders", "again").status == ExitStatus.OK
    assert rmq("purge", "orders", "pending", "--yes", "--json").documents[0]["removed"] == 1


def test_the_partitions_are_shown(rmq, queue):
    rows = rmq("partitions", "orders", "--json").documents
    assert [(row["partition"], row["keys"], row["pending"], row["paused"]) for row in rows] == [
        (0, "orders", 1, False),
        (1, "orders::partition::1", 1, False),
        (2, "orders::partition::2", 1, False),
    ]
    assert "orders::partition::2" in rmq("partitions", "orders").out


@pytest.mark.promise("`rmq partitions --grow` gives a queue more partitions.")
def test_a_queue_grows(rmq, queue, text_client):
    ended = rmq("partitions", "orders", "--grow", "5")
    assert (ended.status, queue.stats().pending) == (ExitStatus.USAGE, 3)
    assert "add --yes" in ended.err
    ended = rmq("partitions", "orders", "--grow", "5", "--yes", "--json")
    assert (ended.status, ended.documents) == (ExitStatus.OK, [{"queue": "orders", "partitions": 5, "before": 3}])
    with pytest.raises(PartitionCountError):
        queue.publish("late")
    assert rmq("stats", "orders", "--json").documents[0]["pending"] == 3
    ended = rmq("partitions", "orders", "--grow", "2", "--yes")
    assert ended.status != ExitStatus.OK
    assert "must be at least 5" in ended.err
    ended = rmq("stats", "orders", "--partitions", "3")
    assert ended.status != ExitStatus.OK
    assert "partitions=5" in ended.err


def test_a_new_queue_gets_as_many_as_the_command_says(rmq, text_client):
    assert rmq("publish", "fresh", "a", "b", "--partitions", "2").status == ExitStatus.OK
    assert RedisMessageQueue("fresh", client=text_client, partitions=2).stats().pending == 2
