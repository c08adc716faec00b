"""All keys of a queue share one slot, because the client is a cluster client or `hash_tag` is set."""

from collections.abc import Callable
from typing import Any

import pytest
from redis.crc import key_slot

from redis_message_queue.embedded import EmbeddedRedis
from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import Shell, claim_and_die, fail, holding, only_woken, take, until
from tests.topologies.cluster import Cluster

pytestmark = pytest.mark.topic("Cluster")


# What a queue without tenants can leave behind, by the first word after the name.
WORDS = set(
    b"pending processing leases deliveries completed failed dlq deduplication reply wakeup timer_owner meta".split()
)


async def leave_every_kind_of_key(shell: Shell, name: str, separator: str = "::") -> Any:
    """A queue with data in each of the keys that a queue can have."""
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


@pytest.mark.promise("On a cluster client all keys of a queue share a slot, and you need not write a hash tag.")
@pytest.mark.parametrize(
    "name, separator, prefix", [("orders", "::", b"{orders}::"), ("żółć", "/", "{żółć}/".encode())]
)
async def test_every_key_of_a_queue_is_in_one_slot_of_one_node(
    shell: Shell, cluster: Cluster, name: str, separator: str, prefix: bytes
) -> None:
    """Without a tag in the name; checked on every node while a consumer waits for the next deadline."""
    queue = await leave_every_kind_of_key(shell, name, separator)
    assert queue.key.pending.startswith(f"{{{name}}}")
    everywhere = cluster.every_key()

    async def watch() -> None:
        await take(only_woken(shell, name, key_separator=separator))

    def is_watched() -> bool:
        """Keep the next deadline near, and check every node."""
        held: Any = shell.redis.zrange(queue.key.leases, 0, -1)
        shell.redis.zadd(queue.key.leases, dict.fromkeys(held, soon(cluster, queue.key.leases)))
        everywhere.update(cluster.every_key())
        return queue.key.timer_owner.encode() in everywhere

    async with holding(queue):
        watcher = shell.beside(watch)
        assert await until(is_watched)
    shell.lapse(queue)
    shell.redis.lpush(queue.key.wakeup, "1")
    await watcher
    assert all(key.startswith(prefix) for key in everywhere)
    assert {key[len(prefix) :].split(separator.encode())[0] for key in everywhere} >= WORDS
    assert {key_slot(key) for key in everywhere} == {key_slot(name.encode())}
    assert all(not node.keys() for node in cluster.bystanders(queue.key.pending))


def soon(cluster: Cluster, key: str) -> float:
    """A deadline within the long slice of a consumer that waits to be woken, by the server's clock."""
    seconds, micros = cluster.owner(key).redis.time()
    return seconds * 1e6 + micros + LIMIT_SECONDS * 1e6


@pytest.mark.promise("A name with its own hash tag keeps it; braces that form no tag are refused.")
async def test_a_name_with_a_hash_tag_keeps_it(shell: Shell, cluster: Cluster) -> None:
    """So that two queues can share a slot."""
    orders = await leave_every_kind_of_key(shell, "{eu}:orders")
    bills = await leave_every_kind_of_key(shell, "{eu}:bills")
    assert (orders.key.pending, bills.key.dead_letter) == ("{eu}:orders::pending", "{eu}:bills::dlq")
    assert {key_slot(key) for key in cluster.every_key()} == {key_slot(b"eu")}


@pytest.mark.promise("A name with its own hash tag keeps it; braces that form no tag are refused.")
async def test_a_name_whose_braces_are_no_hash_tag_is_refused(shell: Shell, cluster: Cluster) -> None:
    """Its keys would be in different slots."""
    for name in ("a{b", "}{", "{}", "a}b"):
        with pytest.raises(shell.module.ConfigurationError, match=r"^name "):
            shell.queue(name)
    assert cluster.every_key() == set()


@pytest.mark.promise("On a cluster client all keys of a queue share a slot, and you need not write a hash tag.")
async def test_queues_of_different_names_are_spread_over_the_cluster(shell: Shell, cluster: Cluster) -> None:
    """The tag is the whole name, so a cluster can hold more queues than a server."""
    for number in range(20):
        await shell.queue(f"orders-{number}").publish("a")
    assert all(node.keys() for node in cluster.primaries)


# Dead letters


def with_dead_letters(shell: Shell, name: str, dead_letter_queue: str, **options: Any) -> Any:
    gateway = shell.gateway(
        message_wait_interval_seconds=0,
        message_visibility_timeout_seconds=300,
        max_delivery_count=1,
        dead_letter_queue=dead_letter_queue,
        **options,
    )
    return shell.queue(name, gateway=gateway)


@pytest.mark.promise(
    "A dead-letter name that starts with the queue name gets its hash tag; one in another slot raises "
    "`ConfigurationError`."
)
@pytest.mark.parametrize(
    "name, given, used",
    [
        ("orders", "orders::poison", "{orders}::poison"),
        ("orders", "{orders}::poison", "{orders}::poison"),
        ("orders", "dead:{orders}", "dead:{orders}"),
        ("{eu}:orders", "{eu}:dead", "{eu}:dead"),
        ("{eu}:orders", "{eu}:orders::poison", "{eu}:orders::poison"),
    ],
)
async def test_dead_letters_beside_the_queue_share_its_slot(
    shell: Shell, cluster: Cluster, name: str, given: str, used: str
) -> None:
    """A name that begins with the queue's name and separator gets its tag; one with the same tag keeps it."""
    queue = with_dead_letters(shell, name, given)
    assert queue.key.dead_letter == used
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    assert shell.listed(used) == [b"a"]
    assert len({key_slot(key) for key in cluster.every_key()}) == 1


@pytest.mark.promise(
    "A dead-letter name that starts with the queue name gets its hash tag; one in another slot raises "
    "`ConfigurationError`."
)
async def test_dead_letters_in_another_slot_are_refused(shell: Shell, cluster: Cluster) -> None:
    """It is refused before anything is written; the error says which names are possible."""
    for elsewhere in ("poison", "orderspoison", "orders:poison", "{bills}::dlq", "orders"):
        with pytest.raises(shell.module.ConfigurationError, match=r"dead_letter_queue .*'orders::'.*\{orders\}"):
            with_dead_letters(shell, "orders", elsewhere)
    assert cluster.every_key() == set()


# With hash_tag=True


class Delegating:
    """A client that wraps a cluster client without inheriting from it, so that it is not recognised."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.mark.promise("`hash_tag=True` puts all keys of a queue into one slot on any client.")
async def test_hash_tag_works_with_a_wrapped_cluster_client(shell: Shell, cluster: Cluster) -> None:
    """For example an instrumented one."""
    queue = shell.queue("orders", client=Delegating(shell.client), wait=0, hash_tag=True, deduplication=True)
    assert await queue.publish("a") is True
    assert await take(queue) == b"a"
    assert all(key.startswith(b"{orders}::") for key in cluster.every_key())


@pytest.mark.promise("`hash_tag=True` puts all keys of a queue into one slot on any client.")
async def test_hash_tag_works_with_a_plain_client(
    shell: Shell, plain_client: Callable[..., Any], server: EmbeddedRedis
) -> None:
    """On a single server, so that its keys can move to a cluster unchanged."""
    queue = shell.queue("moving", client=plain_client(server.port), wait=0, hash_tag=True)
    await queue.publish("a")
    assert queue.key.pending == shell.queue("moving").key.pending == "{moving}::pending"
    assert await take(queue) == b"a"
