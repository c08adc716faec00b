"""A node of a cluster that dies or stops with a message in hand costs a consumer nothing but that node's messages."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from redis_message_queue import RedisMessageQueue
from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import Awaited, Shell, take, until
from tests.topologies.cluster import Cluster, Node
from tests.topologies.test_cluster import lossy_client

pytestmark = pytest.mark.topic("Partitions")

PARTITIONS = 6
# A budget that no test waits for, and a timeout that no pause of a loop may come near to.
LONG = {"retry_budget_seconds": 4 * LIMIT_SECONDS, "visibility_timeout_seconds": 10 * LIMIT_SECONDS}
SOCKET_TIMEOUT = 30.0
WAYS: dict[str, tuple[Callable[[Node], None], Callable[[Cluster, Node], None]]] = {
    "killed": (lambda node: node.server.kill(), lambda cluster, node: cluster.revive(node)),
    "stopped": (lambda node: node.server.pause(), lambda cluster, node: node.server.resume()),
}


@pytest.fixture
def topology(killable_cluster: Cluster) -> Cluster:
    return killable_cluster


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Load:
    """A queue with a message of one node in hand, and many on the others."""

    def __init__(self, shell: Shell, topology: Cluster, way: str, **options: Any) -> None:
        self.shell, self.topology = shell, topology
        self._break, self._mend = WAYS[way]
        client = shell.new_client(socket_timeout=SOCKET_TIMEOUT)
        self.queue = shell.queue("orders", **{"partitions": PARTITIONS, "wait": 0, "client": client} | LONG | options)
        owners = [topology.owner(self.part(number).key.pending) for number in range(PARTITIONS)]
        primary = topology.replica.redis.info("replication")["master_port"]
        self.dead = next(node for node in owners if node.port == primary)
        self.lost = [number for number, owner in enumerate(owners) if owner is self.dead]
        self.live = [number for number, owner in enumerate(owners) if owner is not self.dead]
        self.handled: list[str] = []
        self.times: list[float] = []
        self.held = asyncio.Event()
        self._is_released = False
        self.sent = 0
        self.error: Exception | None = None  # what the handler of the message in hand raises

    def part(self, number: int) -> Any:
        return self.queue.queue.partition(number)

    async def publish(self, numbers: list[int], count: int) -> None:
        for number in numbers:
            await Awaited(self.part(number)).publish_many([f"{number}-{self.sent + place}" for place in range(count)])
            self.sent += count

    async def handle(self, message: Any) -> None:
        text = message.payload.decode()
        if text == "held":
            self.held.set()
            assert await until(lambda: self._is_released)
        self.handled.append(text)
        self.times.append(time.monotonic())
        if text == "held" and self.error is not None:
            raise self.error

    @asynccontextmanager
    async def outage(self, **options: Any) -> Any:
        """The loop runs, has a message of the node in hand, and then the node is away until the block ends."""
        await Awaited(self.part(self.lost[0])).publish("held")
        running = self.shell.beside(lambda: self.queue.run(self.shell.handler(self.handle), **options))
        assert await until(self.held.is_set)
        await self.publish(self.live, 25)
        await asyncio.to_thread(self._break, self.dead)
        try:
            self._is_released = True
            yield running
        finally:
            await asyncio.to_thread(self._mend, self.topology, self.dead)

    def longest_pause(self) -> float:
        return max(after - before for before, after in zip(self.times, self.times[1:], strict=False))


@pytest.mark.promise("A node that is away stops its own messages only: `run()` serves the other partitions meanwhile.")
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_the_other_partitions_go_on_while_an_ack_cannot_be_delivered(
    shell: Shell, topology: Cluster, way: str, concurrency: int
) -> None:
    load = Load(shell, topology, way)
    async with load.outage(concurrency=concurrency) as running:
        assert await until(lambda: len(load.handled) > load.sent), f"{len(load.handled)} of {load.sent}"
        assert load.longest_pause() < SOCKET_TIMEOUT / 3
        assert not running.done()
    await load.publish([*range(PARTITIONS)], 5)
    assert await until(lambda: len(load.handled) > load.sent)
    await load.queue.drain()
    summary = await asyncio.wait_for(running, LIMIT_SECONDS)
    assert (summary.handled, summary.unsettled) == (load.sent + 1, 0)
    assert len(set(load.handled)) == len(load.handled)
    stats = await load.queue.stats()
    assert (stats.pending, stats.processing) == (0, 0)


async def test_settlements_of_failed_messages_do_not_hold_up_the_others(
    shell: Shell, topology: Cluster, way: str
) -> None:
    """Its handler raises while the node is away: the message goes to the dead letters when the node is back."""
    load = Load(shell, topology, way)
    load.error = ValueError("no such customer")
    async with load.outage() as running:
        assert await until(lambda: len(load.handled) > load.sent)
        assert load.longest_pause() < SOCKET_TIMEOUT / 3
        assert not running.done()
    assert await until(lambda: running.done() or load.dead.redis.llen(load.part(load.lost[0]).key.dead_letter) == 1)
    await load.queue.drain()
    summary = await asyncio.wait_for(running, LIMIT_SECONDS)
    assert (summary.handled, summary.dead_lettered, summary.unsettled) == (load.sent, 1, 0)


@pytest.mark.promise(
    "A stop waits for acks that cannot be delivered, within the time limit of `drain()`, and then leaves them to the "
    "leases."
)
@pytest.mark.parametrize("timeout", [0.5, None])
async def test_a_stop_waits_for_late_acks_within_its_limit(
    shell: Shell, topology: Cluster, timeout: float | None
) -> None:
    """Without a limit it waits for as long as the retry budget; in both cases the answer covers them."""
    load = Load(shell, topology, "killed", **{} if timeout else {"retry_budget_seconds": 0.5})
    async with load.outage() as running:
        assert await until(lambda: len(load.handled) > load.sent)
        draining = load.shell.beside(lambda: load.queue.drain(timeout))
        summary = await asyncio.wait_for(running, LIMIT_SECONDS)
        await asyncio.wait_for(draining, LIMIT_SECONDS)
    assert (summary.handled, summary.unsettled) == (load.sent, 1)
    assert (await Awaited(load.part(load.lost[0])).stats()).processing == 1


@pytest.mark.parametrize("has_limit", [True, False])
async def test_a_drain_recovers_claims_of_a_node_that_returns_in_its_time(
    shell: Shell, topology: Cluster, has_limit: bool
) -> None:
    """It does not give up after the moment that a loop would wait for one node while it could serve others."""
    client = lossy_client(shell, topology)
    queue = shell.queue("orders", client=client, wait=0, partitions=PARTITIONS, **LONG)
    assert await take(queue) is None
    for number in range(PARTITIONS):
        await Awaited(queue.queue.partition(number)).publish("a")
    client.losses.reply(times=PARTITIONS)
    assert await take(queue) is None  # each claim has taken a message, and nobody heard of it
    node = topology.owner(queue.queue.partition(0).key.pending)
    await asyncio.to_thread(node.server.kill)
    draining = shell.beside(lambda: queue.drain(LIMIT_SECONDS if has_limit else None))
    try:
        others = [queue.queue.partition(number) for number in range(PARTITIONS)]
        others = [one for one in others if topology.owner(one.key.pending) is not node]
        for one in others:
            assert await until(lambda one=one: topology.owner(one.key.pending).redis.llen(one.key.pending) == 1)
        assert not draining.done()
    finally:
        await asyncio.to_thread(topology.revive, node)
    assert await asyncio.wait_for(draining, LIMIT_SECONDS) is True
    stats = await Awaited(shell.queue("orders", partitions=PARTITIONS).queue).stats()
    assert (stats.pending, stats.processing) == (PARTITIONS, 0)


@pytest.mark.promise("After a failover, `run()` serves the promoted replica within about a second.")
async def test_a_promoted_replica_is_served_again(
    shell: Shell, topology: Cluster, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for what was in hand; on a busy machine it takes longer than a second, and far less than a timeout."""
    load = Load(shell, topology, way)
    replica = topology.replica
    # redis-py asks the nodes for the layout in any order. A frozen one that comes first would take a whole timeout.
    monkeypatch.setattr(random, "shuffle", lambda nodes: nodes.sort(key=lambda node: node.port != load.dead.port))
    async with load.outage() as running:
        assert await until(lambda: len(load.handled) > load.sent)
        await asyncio.to_thread(replica.cluster, "FAILOVER", "TAKEOVER")
        began = time.monotonic()
        assert await until(lambda: replica.port in replica.layout().values())
        await asyncio.to_thread(publish_through, replica, load.lost[0], "after the failover")
        assert await until(lambda: "after the failover" in load.handled)
        assert time.monotonic() - began < SOCKET_TIMEOUT / 2
    await load.queue.drain()
    summary = await asyncio.wait_for(running, LIMIT_SECONDS)
    assert summary.unsettled == 0
    await asyncio.to_thread(topology.settle)


def publish_through(node: Node, partition: int, message: str) -> None:
    """Publish with a client that asks this node for the nodes of the cluster."""
    with redis.RedisCluster(host=Cluster.host, port=node.port) as client:
        RedisMessageQueue("orders", client=client, partitions=PARTITIONS).partition(partition).publish(message)


async def test_a_loop_with_no_partition_left_raises_after_its_budget(shell: Shell, topology: Cluster) -> None:
    """One that does not answer is left to itself; all of them are an error."""
    queue = shell.queue("orders", partitions=PARTITIONS, wait=0, retry_budget_seconds=1.0)
    handled = asyncio.Event()
    await queue.publish("first")
    running = shell.beside(lambda: queue.run(shell.callback(lambda message: handled.set())))
    assert await until(handled.is_set)
    for node in topology.nodes:
        await asyncio.to_thread(node.server.kill)
    try:
        with pytest.raises(shell.module.RetryBudgetExhaustedError):
            await asyncio.wait_for(running, LIMIT_SECONDS)
    finally:
        await asyncio.to_thread(topology.revive, *topology.nodes)
