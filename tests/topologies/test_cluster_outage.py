"""A cluster that loses a primary, or all nodes for a while, neither loses nor duplicates a message."""

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import Shell, take
from tests.topologies.cluster import Cluster
from tests.topologies.replication import await_replication

pytestmark = pytest.mark.topic("Cluster")


# A budget for seconds without a server, and short pauses so that the test is fast.
LONG_BUDGET = {"retry_budget_seconds": 2 * LIMIT_SECONDS, "retry_max_delay_seconds": 0.1}
KEPT = {"enable_completed_queue": True, "max_completed_length": None}
LONG = 3 * LIMIT_SECONDS


@pytest.fixture
def topology(killable_cluster: Cluster) -> Cluster:
    return killable_cluster


def name_on(cluster: Cluster, replica: Any) -> str:
    """A queue on the primary that has the replica."""
    primary = replica.redis.info("replication")["master_port"]
    names = (f"orders-{number}" for number in range(1000))
    return next(name for name in names if cluster.owner(f"{{{name}}}").port == primary)


@pytest.mark.promise("A migrating slot or a dying node loses and duplicates nothing.")
async def test_a_promoted_replica_continues_where_its_primary_died(shell: Shell, topology: Cluster) -> None:
    """Waiting messages are there, a publish during the failover is done once, and the handler's ack counts."""
    replica = topology.replica
    events = shell.events()
    queue = shell.queue(
        name_on(topology, replica),
        wait=0,
        on_event=events.listen,
        heartbeat_interval_seconds=0.1,
        **KEPT,
        **LONG_BUDGET,
    )
    await queue.publish("held")
    await queue.publish("waiting")
    primary = topology.owner(queue.key.pending)
    async with queue.process_message():
        await_replication(primary.redis, queue.key.prefix)
        primary.server.kill()
        late = shell.beside(partial(queue.publish, "late"))
        await asyncio.sleep(0.2)  # for a while no server is there
        topology.promote(replica)
        assert await asyncio.wait_for(late, LIMIT_SECONDS) is True
        assert queue.current_message().lease_lost is False
    assert events.names[-2:] == ["ack/success", "completed/success"]
    assert [await take(queue) for _ in range(3)] == [b"waiting", b"late", None]
    assert shell.listed(queue.key.completed) == [b"late", b"waiting", b"held"]
    topology.revive(primary)
    assert topology.leftovers(queue) == {queue.key.completed.encode()}


@pytest.mark.promise("A migrating slot or a dying node loses and duplicates nothing.")
async def test_a_cluster_that_is_down_completely_is_retried(shell: Shell, topology: Cluster) -> None:
    """Publishes, an ack and a waiting consumer survive it; everything confirmed before is there."""
    events = shell.events()
    queue = shell.queue("orders", wait=0, on_event=events.listen, **KEPT, **LONG_BUDGET)
    bills = shell.queue("bills", wait=LONG, **LONG_BUDGET)
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
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, consumer), LIMIT_SECONDS)
    assert outcomes == [True, False, True, b"a bill"]
    assert events.of("cleanup_failed") == []
    assert [await take(queue) for _ in range(3)] == [b"waiting", b"late", None]
    assert sorted(shell.listed(queue.key.completed)) == [b"held", b"late", b"waiting"]
