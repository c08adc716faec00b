"""All keys of a queue share one slot, because the client is a cluster's or because the user says so."""

from collections.abc import Callable
from typing import Any

import pytest
from redis.crc import key_slot

from redis_message_queue.embedded import EmbeddedRedis
from tests.contract.shells import PATIENCE_SECONDS, Shell, claim_and_die, fail, holding, take, until
from tests.topologies.cluster import Cluster

# What a queue without tenants can leave behind, by the first word after the name.
WORDS = set(b"pending processing leases deliveries completed failed dlq deduplication reply bell watch meta".split())


async def leave_every_kind_of_key(shell: Shell, name: str, separator: str = "::") -> Any:
    """A queue with something in each of the keys that a queue can have."""
    queue = shell.queue(
        name,
        wait=0,
        key_separator=separator,
        deduplication=True,
        enable_completed_queue=True,
        enable_failed_queue=True,
        max_delivery_count=2,
    )
    for text in ("dead", "handled", "failed", "returned", "waiting"):
        await queue.publish(text)
    for _ in range(2):
        await claim_and_die(queue)
        shell.lapse(queue)
    await take(queue)
    await fail(queue, ValueError())
    await claim_and_die(queue)
    shell.lapse(queue)
    await claim_and_die(queue)
    return queue


@pytest.mark.parametrize(
    "name, separator, prefix", [("orders", "::", b"{orders}::"), ("żółć", "/", "{żółć}/".encode())]
)
async def test_every_key_of_a_queue_is_in_one_slot_of_one_node(
    shell: Shell, cluster: Cluster, name: str, separator: str, prefix: bytes
) -> None:
    """Nobody wrote a tag; looked at on every node, while somebody is on watch for the next deadline."""
    queue = await leave_every_kind_of_key(shell, name, separator)
    assert queue.key.pending.startswith(f"{{{name}}}")
    everywhere = cluster.every_key()

    async def watch() -> None:
        await take(shell.queue(name, wait=PATIENCE_SECONDS, key_separator=separator))

    def is_watched() -> bool:
        """Keep the next deadline near, and look at every node."""
        held = shell.redis.zrange(queue.key.leases, 0, -1)
        shell.redis.zadd(queue.key.leases, dict.fromkeys(held, soon(cluster, queue.key.leases)))
        everywhere.update(cluster.every_key())
        return queue.key.watch.encode() in everywhere

    async with holding(queue):
        watcher = shell.beside(watch)
        assert await until(is_watched)
    await watcher
    assert all(key.startswith(prefix) for key in everywhere)
    assert {key[len(prefix) :].split(separator.encode())[0] for key in everywhere} >= WORDS
    assert {key_slot(key) for key in everywhere} == {key_slot(name.encode())}
    assert all(not node.keys() for node in cluster.bystanders(queue.key.pending))


def soon(cluster: Cluster, key: str) -> float:
    """A deadline within the next slice of a waiting consumer, by the clock of the server that keeps it."""
    seconds, micros = cluster.owner(key).redis.time()
    return seconds * 1e6 + micros + 0.3e6


async def test_a_name_with_a_tag_of_its_own_keeps_it(shell: Shell, cluster: Cluster) -> None:
    """So that two queues can be neighbours."""
    orders = await leave_every_kind_of_key(shell, "{eu}:orders")
    bills = await leave_every_kind_of_key(shell, "{eu}:bills")
    assert (orders.key.pending, bills.key.dead_letter) == ("{eu}:orders::pending", "{eu}:bills::dlq")
    assert {key_slot(key) for key in cluster.every_key()} == {key_slot(b"eu")}


async def test_a_name_whose_braces_make_no_tag_is_refused(shell: Shell, cluster: Cluster) -> None:
    """Braces that say nothing would scatter the keys."""
    for name in ("a{b", "}{", "{}", "a}b"):
        with pytest.raises(shell.module.ConfigurationError, match=r"^name "):
            shell.queue(name)
    assert cluster.every_key() == set()


async def test_queues_of_different_names_are_spread_over_the_cluster(shell: Shell, cluster: Cluster) -> None:
    """A tag is the whole name, so that a cluster carries more queues than a server."""
    for number in range(20):
        await shell.queue(f"orders-{number}").publish("a")
    assert all(node.keys() for node in cluster.primaries)


# The dead letters


def with_dead_letters(shell: Shell, name: str, dead_letter_queue: str, **options: Any) -> Any:
    gateway = shell.gateway(
        message_wait_interval_seconds=0,
        message_visibility_timeout_seconds=300,
        max_delivery_count=1,
        dead_letter_queue=dead_letter_queue,
        **options,
    )
    return shell.queue(name, gateway=gateway)


@pytest.mark.parametrize(
    "name, given, used",
    [
        ("orders", "orders::graveyard", "{orders}::graveyard"),
        ("orders", "{orders}::graveyard", "{orders}::graveyard"),
        ("orders", "dead:{orders}", "dead:{orders}"),
        ("{eu}:orders", "{eu}:dead", "{eu}:dead"),
        ("{eu}:orders", "{eu}:orders::graveyard", "{eu}:orders::graveyard"),
    ],
)
async def test_dead_letters_beside_the_queue_share_its_slot(
    shell: Shell, cluster: Cluster, name: str, given: str, used: str
) -> None:
    """A name that starts with the queue's and its separator is tagged with it; one with the same tag is kept."""
    queue = with_dead_letters(shell, name, given)
    assert queue.key.dead_letter == used
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    assert shell.listed(used) == [b"a"]
    assert len({key_slot(key) for key in cluster.every_key()}) == 1


async def test_dead_letters_in_another_slot_are_refused(shell: Shell, cluster: Cluster) -> None:
    """Before anything is written; the error says which names would do."""
    for elsewhere in ("graveyard", "ordersgraveyard", "orders:graveyard", "{bills}::dlq", "orders"):
        with pytest.raises(shell.module.ConfigurationError, match=r"dead_letter_queue .*'orders::'.*\{orders\}"):
            with_dead_letters(shell, "orders", elsewhere)
    assert cluster.every_key() == set()


# By the user's word


class Delegating:
    """Stands for clients that wrap a cluster client without inheriting from it: nothing shows what they are."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


async def test_hash_tag_serves_a_cluster_client_in_disguise(shell: Shell, cluster: Cluster) -> None:
    """An instrumented one, say; asked for, the tag is there."""
    queue = shell.queue("orders", client=Delegating(shell.client), wait=0, hash_tag=True, deduplication=True)
    assert await queue.publish("a") is True
    assert await take(queue) == b"a"
    assert all(key.startswith(b"{orders}::") for key in cluster.every_key())


async def test_hash_tag_serves_a_plain_client_too(
    shell: Shell, plain_client: Callable[..., Any], server: EmbeddedRedis
) -> None:
    """On a single server, so that its keys can move to a cluster as they are."""
    queue = shell.queue("moving", client=plain_client(server.port), wait=0, hash_tag=True)
    await queue.publish("a")
    assert queue.key.pending == shell.queue("moving").key.pending == "{moving}::pending"
    assert await take(queue) == b"a"
