"""A queue with partitions on a real cluster: it is on all nodes, and loses and duplicates nothing when these change."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from redis_message_queue import ConfigurationError
from tests.concurrency import LIMIT_SECONDS
from tests.concurrency import until as wait_until
from tests.contract.shells import Awaited, Shell, take, until
from tests.topologies.cluster import Cluster
from tests.topologies.migration import Migration

pytestmark = pytest.mark.topic("Partitions")

PARTITIONS = 6
LONG_BUDGET = {"retry_budget_seconds": 2 * LIMIT_SECONDS, "retry_max_delay_seconds": 0.1}


@pytest.fixture
def topology(killable_cluster: Cluster) -> Cluster:
    return killable_cluster


def parted(shell: Shell, **options: Any) -> Any:
    return shell.queue("orders", **{"partitions": PARTITIONS, "wait": 0} | LONG_BUDGET | options)


def key_of(queue: Any, number: int) -> str:
    return str(queue.queue.partition(number).key.pending)


class Load:
    """A producer that publishes until it is told to stop, and a consumer that handles what comes."""

    def __init__(self, shell: Shell) -> None:
        self.queue = parted(shell)
        self._consumer = parted(shell)
        self.handled: list[str] = []
        self.sent: list[str] = []
        self._is_over = False
        handler = shell.callback(lambda message: self.handled.append(message.payload.decode()))
        self._running = shell.beside(lambda: self._consumer.run(handler, prefetch=5, concurrency=2))
        self._sending = shell.beside(self._publish)

    async def _publish(self) -> None:
        while not self._is_over:
            text = f"message {len(self.sent)}"
            assert await self.queue.publish(text) is True
            self.sent.append(text)

    async def more(self, count: int = 60) -> None:
        """Wait until this many more are handled."""
        enough = len(self.handled) + count
        assert await until(lambda: len(self.handled) >= enough), f"{len(self.handled)} of {enough} were handled"

    async def end(self) -> None:
        """Stop, and check that each message was handled once."""
        self._is_over = True
        await asyncio.wait_for(self._sending, LIMIT_SECONDS)
        assert await until(lambda: len(self.handled) >= len(self.sent))
        await self._consumer.drain()
        summary = await asyncio.wait_for(self._running, LIMIT_SECONDS)
        assert sorted(self.handled) == sorted(self.sent)
        assert summary.handled == len(self.sent)
        stats = await self.queue.stats()
        assert (stats.pending, stats.processing, stats.dead_letters) == (0, 0, 0)


async def blocking(work: Callable[[], None]) -> None:
    """Do something to the cluster while tasks of this loop go on."""
    await asyncio.to_thread(work)


@pytest.mark.promise("On a cluster each partition has a slot of its own, and a consumer serves all nodes.")
async def test_partitions_are_on_all_nodes(shell: Shell, topology: Cluster) -> None:
    queue = parted(shell)
    nodes = {topology.owner(key_of(queue, number)).port for number in range(PARTITIONS)}
    assert len(nodes) == 3
    sent = [str(number) for number in range(30)]
    for text in sent:
        assert await queue.publish(text) is True
    assert await queue.publish_many(["many"] * 3, partition_key="k") == [True] * 3
    assert (await queue.stats()).pending == 33
    found = [await take(queue) for _ in range(33)]
    assert sorted(found) == sorted([text.encode() for text in sent] + [b"many"] * 3)
    assert await take(queue) is None
    with pytest.raises(ConfigurationError, match=r"has the hash tag \{shop\}"):
        shell.queue("{shop}orders", partitions=2)


async def test_a_queue_grows_over_the_nodes_with_what_belongs_to_it(shell: Shell, topology: Cluster) -> None:
    """Pauses and the journal come to partitions on other nodes, and marks do not stay there."""
    old = parted(shell, partitions=2, journal=True)
    for number in range(2):
        await Awaited(old.queue.partition(number)).publish("before")
    await Awaited(old).pause()
    await Awaited(old).pause(tenant="acme")
    assert await Awaited(parted(shell, partitions=2)).grow_partitions(PARTITIONS) == 2
    queue = parted(shell)
    assert await Awaited(queue).is_paused() is True
    receipts = [await Awaited(queue.queue.partition(number)).submit("m") for number in range(PARTITIONS)]
    assert [await take(queue) for _ in range(PARTITIONS)] == [None] * PARTITIONS
    assert [entry.event for entry in await Awaited(queue).trace(receipts[5].id)] == ["published"]
    for number in range(PARTITIONS):
        part = Awaited(queue.queue.partition(number))
        assert await part.is_paused(tenant="acme") is True
    await Awaited(queue).resume()
    async with queue.process_messages(1) as batch:
        if len(batch) == 1:
            assert await Awaited(queue).cancel(batch[0].id) == "in_flight"
    summary = await queue.run(shell.callback(lambda message: None), until_empty=True)
    assert summary.handled == PARTITIONS + 2 - 1
    with pytest.raises(ConfigurationError, match="partitions must be at least 6"):
        await Awaited(queue).grow_partitions(4)


@pytest.mark.promise("On a cluster a publish to any partition wakes a waiting consumer.")
async def test_a_publish_wakes_a_consumer_that_waits_on_all_nodes(shell: Shell, topology: Cluster) -> None:
    queue = parted(shell, wait=3 * LIMIT_SECONDS)
    for number in range(PARTITIONS):
        waiting = shell.beside(lambda: take(queue))
        assert await until(lambda: topology.blocked() == PARTITIONS)
        await Awaited(queue.queue.partition(number)).publish(str(number))
        assert await asyncio.wait_for(waiting, LIMIT_SECONDS) == str(number).encode()
        assert await until(lambda: topology.blocked() == 0), "no connection waits any more"


@pytest.mark.promise(
    "A migrating slot, a failover or a dying node loses and duplicates nothing in a partitioned queue."
)
async def test_a_slot_migrates_under_load(shell: Shell, topology: Cluster) -> None:
    load = Load(shell)
    await load.more()
    with Migration(topology, key_of(load.queue, 1)) as migration:
        await blocking(migration.finish)
    await load.more()
    await load.end()


async def test_a_replica_takes_over_under_load(shell: Shell, topology: Cluster) -> None:
    """In a failover that an operator asks for: the primary waits until the replica has everything."""
    load = Load(shell)
    await load.more()
    replica = topology.replica

    def fail_over() -> None:
        replica.cluster("FAILOVER")
        wait_until(lambda: replica.port in replica.layout().values(), "the replica has become a primary")
        topology.settle()

    await blocking(fail_over)
    await load.more()
    await load.end()


async def test_the_other_partitions_are_served_while_a_node_is_down(shell: Shell, topology: Cluster) -> None:
    """What waits on the dead node comes when it is back; it syncs to disk before each reply."""
    queue = parted(shell, wait=0.2)
    consumer = parted(shell)
    dead = topology.owner(key_of(queue, 1))
    on_dead = [number for number in range(PARTITIONS) if topology.owner(key_of(queue, number)) is dead]
    alive = [number for number in range(PARTITIONS) if number not in on_dead]
    for number in range(PARTITIONS):
        await Awaited(queue.queue.partition(number)).publish_many([f"{number}-{count}" for count in range(5)])
    handled: list[str] = []
    await blocking(dead.server.kill)
    handler = shell.callback(lambda message: handled.append(message.payload.decode()))
    running = shell.beside(lambda: consumer.run(handler))
    try:
        assert await until(lambda: len(handled) >= 5 * len(alive))
        assert {text.partition("-")[0] for text in handled} == {str(number) for number in alive}
    finally:
        await blocking(lambda: topology.revive(dead))
    assert await until(lambda: len(handled) >= 5 * PARTITIONS)
    await consumer.drain()
    await asyncio.wait_for(running, LIMIT_SECONDS)
    assert sorted(handled) == sorted(f"{number}-{count}" for number in range(PARTITIONS) for count in range(5))
