"""On a cluster a queue works as on one server, and you need no hash tag."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import (
    Losses,
    Shell,
    Wiring,
    claim_and_die,
    fail,
    holding,
    only_woken,
    take,
    until,
)
from tests.topologies.cluster import Cluster

pytestmark = pytest.mark.topic("Cluster")


NAMES = ("orders", "bills")  # two queues in different slots
LONG = 3 * LIMIT_SECONDS  # a wait that no test waits out
EVERY_CLUSTER_WIRING = [
    Wiring(decode_responses=decodes, protocol=protocol) for decodes in (False, True) for protocol in (2, 3)
]


class LossyCluster(redis.RedisCluster):
    """A cluster client that loses its connection where `losses` says."""

    losses = Losses()  # for the commands of its constructor

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.losses.before(args[0])
        answer = super().execute_command(*args, **options)
        self.losses.after(args[0])
        return answer


class LossyAsyncCluster(redis.asyncio.RedisCluster):
    """The same for asyncio."""

    losses = Losses()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.losses.before(args[0])
        answer = await super().execute_command(*args, **options)
        self.losses.after(args[0])
        return answer


def lossy_client(shell: Shell, cluster: Cluster) -> Any:
    kind = LossyCluster if shell.name == "sync" else LossyAsyncCluster
    client = shell.closing(kind(host=cluster.host, port=cluster.nodes[0].port))
    client.losses = Losses()
    return client


# A message's life


@pytest.mark.promise("Every feature works on a cluster.")
@pytest.mark.parametrize("wiring", EVERY_CLUSTER_WIRING, ids=str)
async def test_a_message_is_published_handled_and_gone(shell: Shell, cluster: Cluster) -> None:
    """As text or as bytes, as the client decodes; only keys that expire are left."""
    queue = shell.queue("orders", wait=0)
    assert await queue.publish("zażółć 🐘") is True
    assert await queue.publish({"order": 1}) is True
    async with queue.process_message() as message:
        assert message == shell.payload("zażółć 🐘")
        received = queue.current_message()
        assert (received.payload, received.delivery_count) == (message, 1)
    assert await take(queue) == shell.payload('{"order": 1}')
    assert await take(queue) is None
    assert cluster.leftovers(queue) == set()


@pytest.mark.promise("Every feature works on a cluster.")
async def test_messages_keep_their_order(shell: Shell) -> None:
    """First in, first out, also for messages of a consumer that died."""
    queue = shell.queue("orders", wait=0)
    for number in range(20):
        await queue.publish(str(number))
    assert await claim_and_die(queue) == b"0"
    shell.lapse(queue)
    assert [int(await take(queue)) for _ in range(20)] == list(range(20))


@pytest.mark.promise("Every feature works on a cluster.")
async def test_a_duplicate_is_suppressed(shell: Shell) -> None:
    """Within the window, by content or by the user's key."""
    by_content = shell.queue("orders", deduplication=True)
    assert [await by_content.publish(text) for text in ("a", "a", "b")] == [True, False, True]
    by_key = shell.queue("bills", deduplication=True, get_deduplication_key=shell.callback(lambda bill: bill["id"]))
    assert [await by_key.publish({"id": "{7}", "try": number}) for number in (1, 2)] == [True, False]
    assert (shell.pending(by_content), shell.pending(by_key)) == (2, 1)


@pytest.mark.promise("Every feature works on a cluster.")
async def test_handled_and_failed_messages_are_kept_in_lists(shell: Shell) -> None:
    """Newest first, no longer than their limits."""
    queue = shell.queue(
        "orders",
        wait=0,
        enable_completed_queue=True,
        enable_failed_queue=True,
        max_completed_length=2,
        max_failed_length=1,
    )
    for text in "abcde":
        await queue.publish(text)
    for _ in range(3):
        await take(queue)
    for _ in range(2):
        await fail(queue, ValueError("no"))
    assert shell.listed(queue.key.completed) == [b"c", b"b"]
    assert shell.listed(queue.key.failed) == [b"e"]


@pytest.mark.promise("Every feature works on a cluster.")
async def test_an_expired_lease_is_reclaimed_and_its_old_holder_fenced(shell: Shell, cluster: Cluster) -> None:
    """By the real clock; the late ack changes nothing, the new holder's ack counts."""
    events = shell.events()
    queue = shell.queue("orders", wait=LONG, visibility_timeout_seconds=0.3, on_event=events.listen)
    await queue.publish("a")
    async with queue.process_message():
        second = shell.queue("orders", wait=LONG)
        async with holding(second):
            assert second.current_message().delivery_count == 2
    assert events.names[-1] == "stale_lease_ack/skipped"
    assert shell.processing(queue) == 1
    shell.lapse(queue)
    assert await take(second) == b"a"
    assert cluster.leftovers(queue) == set()


@pytest.mark.promise("Every feature works on a cluster.")
async def test_a_message_that_is_delivered_too_often_becomes_a_dead_letter(shell: Shell, cluster: Cluster) -> None:
    """In the list of dead letters, which does not exceed its limit."""
    queue = shell.queue("orders", wait=0, max_delivery_count=2, max_dead_letter_length=1)
    for text in "ab":
        await queue.publish(text)
        for _ in range(2):
            await claim_and_die(queue)
            shell.lapse(queue)
        assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"b"]
    assert cluster.leftovers(queue) == {queue.key.dead_letter.encode()}


@pytest.mark.promise("Every feature works on a cluster.")
async def test_a_heartbeat_renews_the_lease(shell: Shell) -> None:
    """The deadline in Redis moves while the handler works, and the ack counts."""
    events = shell.events()
    queue = shell.queue("orders", wait=0, on_event=events.listen, heartbeat_interval_seconds=0.05)
    await queue.publish("a")
    async with queue.process_message():
        (token,) = shell.leases(queue)
        first = shell.redis.zscore(queue.key.leases, token) or 0
        await events.wait_for("lease_renew", 2)
        assert (shell.redis.zscore(queue.key.leases, token) or 0) > first > 0
        assert queue.current_message().lease_lost is False
    assert events.names[-1] == "ack/success"


@pytest.mark.promise("Every feature works on a cluster.")
async def test_a_full_queue_refuses_waits_or_drops(shell: Shell) -> None:
    """As its policy says."""
    refusing = shell.queue("orders", wait=0, max_pending_length=1)
    await refusing.publish("a")
    with pytest.raises(shell.module.QueueBackpressureError):
        await refusing.publish("b")

    blocking = shell.queue(
        "orders",
        max_pending_length=1,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=LIMIT_SECONDS,
    )
    blocked = shell.beside(lambda: blocking.publish("b"))
    assert await take(refusing) == b"a"
    assert await blocked is True

    dropping = shell.queue(
        "orders", max_pending_length=1, pending_overload_policy="drop_oldest", max_delivery_count=None
    )
    assert await dropping.publish("c") is True
    assert await take(refusing) == b"c"
    assert await take(refusing) is None


# Waiting


@pytest.mark.promise("Every feature works on a cluster.")
async def test_a_publish_wakes_a_waiting_consumer(shell: Shell, cluster: Cluster) -> None:
    """It blocks on the node that has the queue."""
    queue = only_woken(shell, "orders")
    for number in range(2):
        consumer = shell.beside(lambda: take(queue))
        assert await until(lambda: cluster.blocked() == 1)
        await queue.publish(str(number))
        assert int(await asyncio.wait_for(consumer, LIMIT_SECONDS)) == number


async def test_a_wait_is_shorter_than_the_socket_timeout(shell: Shell, cluster: Cluster) -> None:
    """The timeout is 0.9 s: a longer blocking read would cost a connection each time."""
    queue = shell.queue("orders", client=shell.new_client(socket_timeout=0.9), wait=1.2)
    await queue.publish("the connection is open")
    await take(queue)
    before, started = cluster.connections_received(), time.monotonic()
    assert await take(queue) is None
    assert time.monotonic() - started >= 1.2
    assert cluster.connections_received() == before


# Lost replies and drains


async def test_a_publish_whose_reply_was_lost_counts_once(shell: Shell, cluster: Cluster) -> None:
    """It is repeated under its number."""
    client = lossy_client(shell, cluster)
    queue = shell.queue("orders", client=client)
    client.losses.reply(times=2)
    assert await queue.publish("a") is True
    assert shell.pending(queue) == 1


@pytest.mark.promise("Every feature works on a cluster.")
async def test_a_drain_requeues_an_unconfirmed_claim(shell: Shell, cluster: Cluster) -> None:
    """To the front of the queue; afterwards the object accepts nothing new."""
    client = lossy_client(shell, cluster)
    queue = shell.queue("orders", client=client, wait=0, retry_budget_seconds=0)
    await queue.publish("a")
    await queue.publish("b")
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        await take(queue)
    assert (shell.pending(queue), shell.processing(queue)) == (1, 1)
    assert await queue.drain(LIMIT_SECONDS) is True
    with pytest.raises(shell.module.QueueDrainedError):
        await queue.publish("c")
    assert await take(queue) is None
    other = shell.queue("orders", wait=0)
    async with other.process_message() as message:
        assert (message, other.current_message().delivery_count) == (b"a", 1)
    assert await take(other) == b"b"


# Concurrency


@pytest.mark.promise("Every feature works on a cluster.")
async def test_many_producers_and_consumers_handle_every_message_once(shell: Shell) -> None:
    """Two queues in different slots, through one client."""
    everything = sorted(f"{name} {number} {turn}" for name in NAMES for number in range(3) for turn in range(20))
    handled: list[str] = []

    async def produce(name: str, number: int) -> None:
        queue = shell.queue(name)
        for turn in range(20):
            assert await queue.publish(f"{name} {number} {turn}") is True

    async def consume(name: str) -> None:
        queue = shell.queue(name, wait=0.2)
        while len(handled) < len(everything):
            if message := await take(queue):
                handled.append(message.decode())

    await shell.queue("warm").publish("the client knows its cluster now")
    work = [shell.beside(partial(produce, name, number)) for name in NAMES for number in range(3)]
    work += [shell.beside(partial(consume, name)) for name in NAMES for _ in range(3)]
    await asyncio.wait_for(asyncio.gather(*work), LIMIT_SECONDS)
    assert sorted(handled) == everything


async def test_many_callers_may_use_a_new_client_at_once(shell: Shell) -> None:
    """Even while an asyncio client still loads the slots and closes connections for it."""

    async def publish(name: str, client: Any) -> int:
        queue = shell.queue(name, client=client)
        return sum([await queue.publish("a") for _ in range(5)])

    for _ in range(3):
        client = shell.new_client()
        work = [shell.beside(partial(publish, NAMES[number % 2], client)) for number in range(12)]
        assert await asyncio.wait_for(asyncio.gather(*work), LIMIT_SECONDS) == [5] * 12
    assert [shell.pending(shell.queue(name)) for name in NAMES] == [90, 90]
