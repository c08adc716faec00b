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


@pytest.mark.promise("`rmq ... --partition N` works with one partition of a queue alone.")
def test_commands_work_on_one_partition(rmq, queue, client):
    chosen = ("orders", "--partition", "1", "--json")
    assert rmq("stats", *chosen).documents[0]["pending"] == 1
    assert [row["payload"] for row in rmq("peek", *chosen).documents] == ["message 1"]
    assert [row["tenant"] for row in rmq("tenants", *chosen).documents] == ["acme"]
    assert rmq("pause", *chosen).status == ExitStatus.OK
    assert [queue.partition(number).is_paused() for number in range(3)] == [False, True, False]
    assert rmq("resume", *chosen).status == ExitStatus.OK
    assert rmq("publish", "orders", "more", "--partition", "1").status == ExitStatus.OK
    assert queue.partition(1).stats().pending == 2
    assert len(rmq("consume", *chosen).documents) == 2
    assert rmq("purge", "orders", "pending", "--partition", "2", "--yes", "--json").documents[0]["removed"] == 1
    assert queue.stats().pending == 1
    ended = rmq("stats", "orders", "--partition", "3")
    assert ended.status == ExitStatus.USAGE
    assert "number must be from 0 to 2, not 3" in ended.err
    ended = rmq("partitions", "orders", "--partition", "1", "--grow", "5", "--yes")
    assert ended.status == ExitStatus.USAGE
    assert "grow the queue itself" in ended.err


@pytest.mark.parametrize(("options", "places"), [((), (0, 0, 3)), (("--ordered-tenants",), (2, 1, 0))], ids=str)
def test_a_consumer_can_keep_the_order_of_tenants(rmq, text_client, options, places):
    """The first message waits for its next attempt, and so do those behind it."""
    queue = RedisMessageQueue("orders", client=text_client)
    queue.publish_many(["a", "b", "c"], tenant="acme")
    retried = ("--max-attempts", "2", "--initial-delay-seconds", "60")
    rmq("consume", "orders", *options, "--exec", "exit 1", *retried, "--wait-seconds", "0")
    stats = queue.stats()
    assert (stats.pending, stats.processing, stats.delayed) == places


def test_spark_works_with_the_whole_queue(rmq, queue):
    ended = rmq("spark", "groups", "orders", "--partition", "1")
    assert ended.status == ExitStatus.USAGE
    assert "--partition" in ended.err and "Spark works with all partitions of a queue" in ended.err


def test_a_list_of_queues_tells_their_partitions(rmq, queue, text_client):
    RedisMessageQueue("mails", client=text_client).publish("one")
    rows = rmq("queues", "--json").documents
    assert [(row["queue"], row["partitions"], row["pending"]) for row in rows] == [("mails", 1, 1), ("orders", 3, 3)]


def test_a_pause_of_the_whole_is_logged_once(rmq, queue, caplog):
    rmq("pause", "orders")
    rmq("resume", "orders")
    assert caplog.messages == [
        "orders: the queue is paused; consumers claim nothing of it until it is resumed",
        "orders: the queue is resumed",
    ]


def test_the_doctor_looks_at_the_keys_of_every_partition(rmq, queue, client):
    def found() -> list[str]:
        return [row["found"] for row in rmq("doctor", "orders", "--json").documents if row["check"] == "keys"]

    assert found() == ["the keys of the 3 partitions of orders have the right types"]
    client.set("orders::partition::2::pending", "not a list")
    assert found() == ["orders::partition::2::pending is a string and should be a list"]


def test_schedules_records_and_traces_are_those_of_the_whole(rmq, text_client):
    queue = RedisMessageQueue(
        "orders",
        client=text_client,
        partitions=3,
        journal=True,
        enable_failed_queue=True,
        message_wait_interval_seconds=0,
    )
    for number in range(3):
        receipt = queue.partition(number).submit("x")
        assert [row["event"] for row in rmq("trace", "orders", receipt.id, "--json").documents] == ["published"]
        with pytest.raises(ValueError, match="no such order"), queue.partition(number).process_message():
            raise ValueError("no such order")
        assert len(rmq("records", "orders", "failed", "--json").documents) == number + 1
    assert rmq("redrive", "orders", "--from", "failed", "--json").documents[0]["redriven"] == 3
    for name in ("a", "b", "c", "d"):
        assert rmq("schedule", "add", "orders", name, "tick", "--every-seconds", "3600").status == ExitStatus.OK
    assert sorted(row["name"] for row in rmq("schedule", "list", "orders", "--json").documents) == ["a", "b", "c", "d"]
    assert rmq("schedule", "remove", "orders", "c").status == ExitStatus.OK
    assert len(queue.schedules()) == 3
    (delayed,) = queue.submit_many(["later"], delay_seconds=60)
    assert rmq("cancel", "orders", delayed.id, "--json").documents == [{"id": delayed.id, "outcome": "cancelled"}]


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
