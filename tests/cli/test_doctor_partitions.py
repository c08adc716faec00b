"""`rmq doctor` tells where the partitions of a queue disagree about what belongs to the whole queue."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus

pytestmark = pytest.mark.topic("Command line")


def findings(rmq):
    """CheckLevel, finding and what to change, of the check of partitions; whether there is any problem."""
    ended = rmq("doctor", "orders", "--read-only", "--json")
    rows = [row for row in ended.documents if row["check"] == "partitions"]
    if any(row["level"] == "problem" for row in rows):
        assert ended.status == ExitStatus.FAILED
    return [(row["level"], row["found"], row["change"]) for row in rows]


@pytest.fixture
def queue(client):
    made = RedisMessageQueue("orders", client=client, partitions=3, journal=True, tenant_weights={"acme": 2})
    for number in range(3):
        made.partition(number).publish("a")
    return made


@pytest.mark.promise("`rmq doctor` reports partitions that disagree on pauses, journal, weights, version or number.")
def test_partitions_that_agree_are_well(rmq, queue):
    queue.pause()
    queue.pause(tenant="acme")
    assert findings(rmq) == [("ok", "the 3 partitions of orders agree", None)]
    queue.grow_partitions(4)
    assert findings(rmq) == [("ok", "the 4 partitions of orders agree", None)]


def test_a_partition_that_nobody_has_used_is_well(rmq, client):
    """It gets what belongs to the queue when somebody uses it."""
    queue = RedisMessageQueue("orders", client=client, partitions=3, journal=True)
    queue.partition(0).publish("a")
    assert findings(rmq) == [("ok", "the 3 partitions of orders agree", None)]


def test_a_queue_without_partitions_has_none_to_compare(rmq, client):
    RedisMessageQueue("orders", client=client).publish("a")
    assert findings(rmq) == []


def test_pauses_that_differ_are_a_problem(rmq, queue):
    queue.partition(2).pause()
    queue.partition(0).pause(tenant="acme")
    assert findings(rmq) == [
        (
            "problem",
            f"the tenant 'acme' is paused in partition 0 of orders and not in partition {number} of orders",
            "run rmq pause orders --tenant acme, or rmq resume orders --tenant acme",
        )
        if which == "tenant"
        else (
            "problem",
            "it is paused in partition 2 of orders and not in partition 0 of orders",
            "run rmq pause orders, or rmq resume orders",
        )
        for number, which in ((1, "tenant"), (2, "queue"), (2, "tenant"))
    ]
    assert rmq("resume", "orders").status == rmq("pause", "orders", "--tenant", "acme").status == ExitStatus.OK
    assert findings(rmq) == [("ok", "the 3 partitions of orders agree", None)]


def test_other_rules_of_the_journal_are_a_problem(rmq, queue, client):
    client.hdel("orders::partition::1::meta::3", "journal", "journal_soft", "journal_hard")
    ((level, found, change),) = findings(rmq)
    assert level == "problem"
    assert found.startswith("partition 1 of orders and partition 0 of orders have other rules for the journal: no jour")
    again = RedisMessageQueue("orders", client=client, partitions=3, journal=True)
    assert "publish to each partition once" in change
    for number in range(3):
        again.partition(number).publish("b")
    assert [level for level, *_ in findings(rmq)] == ["ok"]


def test_other_weights_are_advice_and_another_version_is_a_problem(rmq, queue, client):
    client.hset("orders::partition::1::weights", "zeta", 3)
    client.hset("orders::partition::2::meta::3", "version", 2)
    assert [(level, found) for level, found, _ in findings(rmq)] == [
        ("advice", "partition 1 of orders and partition 0 of orders have other tenant weights"),
        ("problem", "partition 2 of orders has version 2 of the stored state, and partition 0 of orders has 1"),
    ]


@pytest.mark.parametrize("first", [2, None], ids=["older", "gone"])
def test_a_first_partition_with_an_older_number_is_a_problem(rmq, queue, client, first):
    """As after a failover of its node to older state."""
    client.delete("orders::meta", "orders::meta::3")
    if first:
        client.hset("orders::meta", mapping={"version": f"partitions:{first}", "partitions": first})
    (found, *others) = findings(rmq)
    said = first or "no"
    assert found == (
        "problem",
        f"partition 0 of orders says that the queue has {said} partitions, and another says 3",
        "run rmq partitions orders --grow 3; after a failover to older state, too",
    )
    assert others == []


def test_a_growth_that_was_interrupted_is_a_problem(rmq, queue, client):
    queue.grow_partitions(4)
    client.rename("orders::partition::2::meta::4", "orders::partition::2::meta::3")
    client.hset("orders::partition::2::meta", mapping={"version": "partitions:3", "partitions": 3})
    ((level, found, change),) = findings(rmq)
    assert (level, found) == (
        "problem",
        "partition 2 of orders says that the queue has 3 partitions, and another says 4",
    )
    assert change.startswith("run rmq partitions orders --grow 4")
    assert rmq("partitions", "orders", "--grow", "4", "--yes").status == ExitStatus.OK
    assert [level for level, *_ in findings(rmq)] == ["ok"]
