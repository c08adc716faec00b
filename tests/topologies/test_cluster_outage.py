"""A cluster that loses a primary, or all of its nodes for a while, neither loses nor doubles a message."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.contract.shells import PATIENCE_SECONDS, Shell, take
from tests.topologies.cluster import SETTINGS, Cluster
from tests.topologies.replication import await_replication

# Patience for seconds without a server, and short pauses so that the test does not wait for them.
PATIENT = {"retry_budget_seconds": 2 * PATIENCE_SECONDS, "retry_max_delay_seconds": 0.1}
KEPT = {"enable_completed_queue": True, "max_completed_length": None}
LONG = 3 * PATIENCE_SECONDS


@pytest.fixture(scope="module")
def mortal_cluster(server_setting: str) -> Iterator[Cluster]:
    """One with a replica, whose nodes write down what they answer; the tests kill them."""
    durable = {"append_only": True, "config": SETTINGS | {"appendfsync": "always"}}
    with Cluster(server_setting, replica=True, **durable) as started:
        yield started


@pytest.fixture
def topology(mortal_cluster: Cluster) -> Iterator[Cluster]:
    """Empty and whole, whatever the test before has left of it."""
    mortal_cluster.flush()
    yield mortal_cluster
    mortal_cluster.revive(*(node for node in mortal_cluster.nodes if not node.server.running))
    mortal_cluster.check()


def name_on(cluster: Cluster, replica: Any) -> str:
    """A queue that lives where the replica's primary is."""
    primary = replica.redis.info("replication")["master_port"]
    names = (f"orders-{number}" for number in range(1000))
    return next(name for name in names if cluster.owner(f"{{{name}}}").port == primary)


async def test_a_replica_that_takes_over_goes_on_where_its_primary_died(shell: Shell, topology: Cluster) -> None:
    """What waited is there, a publish begun in between is done once, and the handler's ack counts."""
    replica = topology.replica
    events = shell.events()
    queue = shell.queue(
        name_on(topology, replica), wait=0, on_event=events.listen, heartbeat_interval_seconds=0.1, **KEPT, **PATIENT
    )
    await queue.publish("held")
    await queue.publish("waiting")
    primary = topology.owner(queue.key.pending)
    async with queue.process_message():
        await_replication(primary.redis, queue.key.prefix)
        primary.server.kill()
        late = shell.beside(partial(queue.publish, "late"))
        await asyncio.sleep(0.2)  # for a while there is nobody to connect to
        topology.promote(replica)
        assert await asyncio.wait_for(late, PATIENCE_SECONDS) is True
        assert queue.current_message().lease_lost is False
    assert events.names[-2:] == ["ack/success", "completed/success"]
    assert [await take(queue) for _ in range(3)] == [b"waiting", b"late", None]
    assert shell.listed(queue.key.completed) == [b"late", b"waiting", b"held"]
    topology.revive(primary)
    assert topology.leftovers(queue) == {queue.key.completed.encode()}


async def test_a_cluster_that_is_away_as_a_whole_is_waited_for(shell: Shell, topology: Cluster) -> None:
    """Publishes, an ack and a waiting consumer outlast it; what was answered before is there."""
    events = shell.events()
    queue = shell.queue("orders", wait=0, on_event=events.listen, **KEPT, **PATIENT)
    bills = shell.queue("bills", wait=LONG, **PATIENT)
    await queue.publish("held")
    await queue.publish("waiting")
    held = queue.process_message()
    assert await held.__aenter__() == b"held"
    consumer = shell.beside(partial(take, bills))
    for node in topology.nodes:
        node.server.kill()
    calls = [
        shell.beside(partial(queue.publish, "late")),
        shell.beside(partial(held.__aexit__, None, None, None)),
        shell.beside(partial(bills.publish, "a bill")),
    ]
    await asyncio.sleep(0.2)
    topology.revive(*topology.nodes)
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, consumer), PATIENCE_SECONDS)
    assert outcomes == [True, None, True, b"a bill"]
    assert events.of("cleanup_failed") == []
    assert [await take(queue) for _ in range(3)] == [b"waiting", b"late", None]
    assert sorted(shell.listed(queue.key.completed)) == [b"held", b"late", b"waiting"]
