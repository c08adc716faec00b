"""Confirmations work on a cluster."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from redis_message_queue.embedded import EmbeddedRedis
from tests.concurrency import LIMIT_SECONDS, until
from tests.faults.durability.replicas import (
    HASTY,
    HEAD_BYTES,
    PATIENT,
    SYNC_AND_ASYNC,
    WAYS,
    done,
    lacking,
    publish,
    repeat,
    unconfirmed,
)
from tests.faults.shells import AsyncioShell, BlockingShell
from tests.topologies.cluster import Cluster, Node

pytestmark = pytest.mark.topic("Durability")


@pytest.fixture(scope="module")
def cluster(server_setting: str) -> Iterator[Cluster]:
    """The first of three primaries has a replica."""
    with Cluster(server_setting, replica=True) as started:
        yield started


@pytest.fixture(params=SYNC_AND_ASYNC)
def anywhere(request: pytest.FixtureRequest) -> Iterator[BlockingShell]:
    """A shell for clients that lead elsewhere than to the proxy."""
    opened = WAYS[request.param](0)
    yield opened
    opened.close()


@contextlib.contextmanager
def on_cluster(cluster: Cluster, shell: BlockingShell, client: dict[str, Any] | None = None, **options: Any) -> Any:
    """A queue in a slot whose owner has a replica."""
    awaits = isinstance(shell, AsyncioShell)
    opened = (cluster.async_client if awaits else cluster.client)(**client or {})
    names = (f"orders {number}" for number in range(100))
    name = next(name for name in names if cluster.owner(f"{{{name}}}") is cluster.nodes[0])
    try:
        yield shell.queue_class(name, client=opened, retry_max_delay_seconds=0.05, **options)
    finally:
        done(shell, opened.aclose() if awaits else opened.close())


def lying_on(node: Node, queue: Any) -> list[bytes]:
    """What waits in the queue, as this node knows it, be it a primary or a replica."""
    with node.redis.pipeline(transaction=False) as pipe:
        listed = pipe.execute_command("READONLY").lrange(queue.key.pending, 0, -1).execute()[-1]
    return [each[HEAD_BYTES:] for each in listed][::-1]


@contextlib.contextmanager
def paused(server: EmbeddedRedis) -> Iterator[None]:
    try:
        server.pause()
        yield
    finally:
        server.resume()


def test_a_cluster_confirms_by_the_replica_of_the_node_that_has_the_queue(cluster, anywhere):
    """A stopped one is missed there, and a repetition counts once."""
    cluster.flush()
    with on_cluster(cluster, anywhere, **PATIENT) as patient, on_cluster(cluster, anywhere, **HASTY) as hasty:
        assert publish(anywhere, patient, "first") is True
        assert lying_on(cluster.replica, patient) == [b"first"]
        with paused(cluster.replica.server):
            error = unconfirmed(anywhere, hasty, "second")
            assert "0 of 1 replicas have it" in str(error)
        assert repeat(anywhere, hasty, error, "second") is True
        assert lying_on(cluster.replica, hasty) == lying_on(cluster.nodes[0], hasty) == [b"first", b"second"]


def test_a_cluster_client_of_little_patience_is_not_made_to_wait_past_it(cluster, anywhere):
    """Each question ends before its client would call it lost: the answer is what the replicas have, and no timeout."""
    cluster.flush()
    slow = {"confirm_replicas": 1, "confirm_timeout_seconds": 1.0}
    with on_cluster(cluster, anywhere, client={"socket_timeout": 0.4}, **slow) as queue:
        with paused(cluster.replica.server):
            error = lacking(anywhere, queue, "0 of 1 replicas have it")
        assert error.__cause__ is None
        assert repeat(anywhere, queue, error) is True
        assert lying_on(cluster.nodes[0], queue) == [b"message"]


def test_a_repetition_finds_the_promoted_replica_of_a_cluster(cluster):  # the last here: it leaves the roles changed
    """The client knew the lost node alone, and nothing but the repetition asks who has the slot now."""
    cluster.flush()
    lost, promoted = cluster.nodes[0], cluster.replica
    with contextlib.ExitStack() as opened:
        shells = [opened.enter_context(contextlib.closing(WAYS[way](0))) for way in SYNC_AND_ASYNC]
        queues = [opened.enter_context(on_cluster(cluster, shell, **HASTY)) for shell in shells]
        with paused(promoted.server):
            errors = [unconfirmed(shell, queue) for shell, queue in zip(shells, queues, strict=True)]
            lost.server.kill()
        until(lambda: lying_on(promoted, queues[0]) == [b"message"] * 2)
        promoted.cluster("FAILOVER", "TAKEOVER")
        until(lambda: cluster.owner(queues[0].key.pending) is promoted)
        until(lambda: all(node.layout() == promoted.layout() for node in cluster.nodes[1:3]))
        try:
            for shell, queue, error in zip(shells, queues, errors, strict=True):
                deadline = time.monotonic() + LIMIT_SECONDS / 3
                # There it waits in vain for a replica, which is another thing to say than that nobody answers.
                while "0 of 1 replicas have it" not in str(error := unconfirmed(shell, queue, repeat_of=error)):
                    assert time.monotonic() < deadline, error
        finally:
            lost.server.restart()
        for shell, queue, error in zip(shells, queues, errors, strict=True):
            assert repeat(shell, queue, error) is True
        assert lying_on(promoted, queues[0]) == [b"message"] * 2
