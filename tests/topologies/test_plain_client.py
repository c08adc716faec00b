"""A plain client on a node of a cluster gets a clear error, and nothing has changed."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import Shell, take, until
from tests.topologies.cluster import Cluster
from tests.topologies.migration import Migration

pytestmark = pytest.mark.topic("Cluster")


WHAT_TO_DO = r"node of a Redis Cluster .* use redis\.RedisCluster"


@contextlib.contextmanager
def clear_error(shell: Shell, operation: str, queue: str = "orders") -> Any:
    with pytest.raises(shell.module.ConfigurationError, match=WHAT_TO_DO) as refusal:
        yield
    assert (refusal.value.queue, refusal.value.operation) == (queue, operation)


@pytest.mark.promise("A non-cluster client on a cluster node gets a clear error, and nothing is written.")
async def test_every_node_refuses_a_queue_without_a_tag(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """Even the node that owns the slot of one key: together the keys are in many slots. With either way of sending."""
    for node, subclassed in itertools.product(cluster.nodes, (False, True)):
        client = plain_client(node.port, subclassed=subclassed)
        queue = shell.queue("orders", client=client, wait=0, deduplication=True)
        with clear_error(shell, "publish"):
            await queue.publish("a")
        with clear_error(shell, "claim"):
            await take(queue)
    assert all(key.endswith(b"::meta") for key in cluster.every_key())


@pytest.mark.promise("A non-cluster client on a cluster node gets a clear error, and nothing is written.")
async def test_a_node_that_does_not_own_the_slot_refuses_a_queue_with_a_tag(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """It redirects the client, and a plain client does not follow."""
    for node in cluster.bystanders("{orders}"):
        queue = shell.queue("orders", client=plain_client(node.port), wait=0, hash_tag=True)
        with clear_error(shell, "publish"):
            await queue.publish("a")
        with clear_error(shell, "claim"):
            await take(queue)
    assert all(key.endswith(b"::meta") for key in cluster.every_key())


@pytest.mark.promise("A non-cluster client on a cluster node gets a clear error, and nothing is written.")
async def test_the_owner_of_the_slot_serves_a_queue_with_a_tag_until_the_slot_moves(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """Before that nothing is wrong; afterwards the error is clear, and the message is where it was."""
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


async def test_a_migrating_slot_gets_a_clear_error_too(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """The source redirects the client once its keys are gone; nothing is written."""
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


async def test_a_waiting_plain_consumer_gets_an_error_when_its_slot_moves(
    shell: Shell, cluster: Cluster, plain_client: Callable[..., Any]
) -> None:
    """The node ends its blocking read with the redirection."""
    client = plain_client(cluster.owner("{orders}").port)
    consumer = shell.beside(lambda: take(shell.queue("orders", client=client, wait=LIMIT_SECONDS, hash_tag=True)))
    assert await until(lambda: cluster.blocked() == 1)
    with Migration(cluster, "{orders}") as migration:
        migration.finish()
    with clear_error(shell, "claim"):
        await consumer
