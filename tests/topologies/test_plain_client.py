"""A plain client on a node of a cluster is told what is wrong, and nothing has changed."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.shells import PATIENCE_SECONDS, Shell, take, until
from tests.topologies.cluster import Cluster
from tests.topologies.migration import Migration

WHAT_TO_DO = r"node of a Redis Cluster .* use redis\.RedisCluster"


@contextlib.contextmanager
def clear_error(shell: Shell, operation: str, queue: str = "orders") -> Any:
    with pytest.raises(shell.module.ConfigurationError, match=WHAT_TO_DO) as refusal:
        yield
    assert (refusal.value.queue, refusal.value.operation) == (queue, operation)


async def test_every_node_refuses_a_queue_without_a_tag(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """Also the one that owns the slot of one or the other key: together they lie in many. Whoever packs the command."""
    for node, subclassed in itertools.product(cluster.nodes, (False, True)):
        client = plain_client(node.port, subclassed=subclassed)
        queue = shell.queue("orders", client=client, wait=0, deduplication=True)
        with clear_error(shell, "publish"):
            await queue.publish("a")
        with clear_error(shell, "claim"):
            await take(queue)
    assert all(key.endswith(b"::meta") for key in cluster.every_key())


async def test_a_node_that_does_not_own_the_slot_refuses_a_queue_with_a_tag(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """It would send the client elsewhere, and a plain one does not go."""
    for node in cluster.bystanders("{orders}"):
        queue = shell.queue("orders", client=plain_client(node.port), wait=0, hash_tag=True)
        with clear_error(shell, "publish"):
            await queue.publish("a")
        with clear_error(shell, "claim"):
            await take(queue)
    assert all(key.endswith(b"::meta") for key in cluster.every_key())


async def test_the_owner_of_the_slot_serves_a_queue_with_a_tag_until_the_slot_moves(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """Nothing tells the two apart before; afterwards the error is the clear one, and the message is where it was."""
    queue = shell.queue("orders", client=plain_client(cluster.owner("{orders}").port), wait=0, hash_tag=True)
    assert await queue.publish("a") is True
    assert await take(queue) == b"a"
    await queue.publish("b")
    with Migration(cluster, "{orders}") as migration:
        migration.finish()
    before = cluster.dump()
    with clear_error(shell, "publish"):
        await queue.publish("c")
    with clear_error(shell, "claim"):
        await take(queue)
    assert cluster.dump() == before
    assert await take(shell.queue("orders", wait=0)) == b"b"


async def test_a_slot_that_has_begun_to_move_is_explained_as_well(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """The source sends the client to ask elsewhere once it has nothing left to say; nothing is written."""
    queue = shell.queue("orders", client=plain_client(cluster.owner("{orders}").port), wait=0, hash_tag=True)
    await queue.publish("a")
    with Migration(cluster, "{orders}") as migration:
        migration.move_all()
        before = cluster.dump()
        with clear_error(shell, "publish"):
            await queue.publish("b")
        with clear_error(shell, "claim"):
            await take(queue)
        assert cluster.dump() == before


async def test_a_plain_consumer_that_waits_while_its_slot_moves_is_told_so(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """The node wakes it with the news, in the midst of a blocking read."""
    client = plain_client(cluster.owner("{orders}").port)
    consumer = shell.beside(lambda: take(shell.queue("orders", client=client, wait=PATIENCE_SECONDS, hash_tag=True)))
    assert await until(lambda: cluster.blocked() == 1)
    with Migration(cluster, "{orders}") as migration:
        migration.finish()
    with clear_error(shell, "claim"):
        await consumer
