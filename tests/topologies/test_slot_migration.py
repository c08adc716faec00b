"""A queue's slot moves to another node while the queue is in use: nothing is lost or duplicated.

During a migration both nodes refuse every script that does not have all its keys on one of them. So calls are refused
and repeated until the migration is complete.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import redis

from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import Shell, claim_and_die, holding, take, until
from tests.topologies.cluster import Cluster
from tests.topologies.migration import Migration

pytestmark = pytest.mark.topic("Cluster")


Migrate = Callable[[Cluster, str], Migration]

LONG = 3 * LIMIT_SECONDS
# Short pauses, so that a call notices the end of a migration soon.
LONG_BUDGET = {"retry_budget_seconds": LIMIT_SECONDS, "retry_max_delay_seconds": 0.05}
KEPT = {"enable_completed_queue": True, "max_completed_length": None}


async def leave_a_returned_message(shell: Shell, queue: Any) -> None:
    """Hold a message in its second delivery, so that `deliveries` exists: a script with a missing key is refused."""
    await queue.publish("returned")
    await claim_and_die(queue)
    shell.lapse(queue)
    await claim_and_die(queue)


async def hand_out_the_rest(shell: Shell, queue: Any) -> None:
    """Let another consumer handle everything that waits or is held without being settled."""
    if shell.redis.exists(queue.key.leases):
        shell.lapse(queue)
    while await take(queue) is not None:
        pass


# One call at a time


class Tries:
    """Calls that are made once, with their results; a refused call must have changed nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.done: set[str] = set()
        self.refused: set[str] = set()
        self._cluster = cluster

    async def once(self, name: str, call: Callable[[], Awaitable[Any]], *refusals: type[Exception]) -> bool:
        before = self._cluster.dump()
        try:
            await call()
        except (redis.RedisError, *refusals):  # type: ignore[misc]  # mypy does not follow the star
            assert self._cluster.dump() == before, f"{name} was refused but changed data"
            self.refused.add(name)
            return False
        self.done.add(name)
        return True


@pytest.mark.promise("A migrating slot or a dying node loses and duplicates nothing.")
async def test_between_two_moved_keys_a_call_is_executed_completely_or_refused(shell: Shell, cluster: Cluster) -> None:
    """A publish, a claim and an ack after each moved key; in the end every message is accounted for."""
    client = shell.new_client()
    client.RedisClusterRequestTTL = 2  # instead of redis-py's 16 attempts, half of them 50 ms apart
    # With a journal, tenants and their limit: a call succeeds only where all its keys are.
    options = {"journal": True, "max_in_flight_per_tenant": 100, **KEPT}
    queue = shell.queue("orders", client=client, wait=0, retry_budget_seconds=0, **options)
    await leave_a_returned_message(shell, queue)
    published = ["returned", *(f"message {number}" for number in range(40))]
    for number, text in enumerate(published[1:]):
        await queue.publish(text, tenant="acme" if number % 2 else None)
    await take(queue)
    held = [queue.process_message() for _ in range(15)]
    for context in held:
        await context.__aenter__()

    tries = Tries(cluster)
    with Migration(cluster, queue.key.pending) as migration:
        while True:
            await tries.once("ack", partial(held.pop().__aexit__, None, None, None), shell.module.CleanupFailedError)
            text = f"message {len(published)}"
            if await tries.once("publish", partial(queue.publish, text)):
                published.append(text)
            context = queue.process_message()
            if await tries.once("claim", context.__aenter__):
                held.append(context)
            left = migration.left()
            if not left:
                break
            migration.move(left[0])
        migration.finish()

    assert tries.refused == {"publish", "claim", "ack"}
    assert {"publish", "ack"} <= tries.done
    for context in held:
        await context.__aexit__(None, None, None)
    await hand_out_the_rest(shell, queue)
    assert sorted(shell.listed(queue.key.completed)) == sorted(text.encode() for text in published)
    assert cluster.leftovers(queue) == {queue.key.completed.encode(), queue.key.journal.encode()}


async def test_a_call_during_a_migration_succeeds_afterwards(shell: Shell, cluster: Cluster) -> None:
    """Publish, claim, ack and failure, all started during the migration, all repeated, each done once."""
    events = shell.events()
    queue = shell.queue("orders", wait=0, on_event=events.listen, enable_failed_queue=True, **KEPT, **LONG_BUDGET)
    for text in ("acked", "failed", "claimed"):
        await queue.publish(text)
    good, bad = queue.process_message(), queue.process_message()
    await good.__aenter__()
    await bad.__aenter__()
    error = ValueError("no")
    with Migration(cluster, queue.key.pending) as migration:
        migration.move(migration.left()[0])
        events.clear()
        calls = [
            shell.beside(partial(queue.publish, "published")),
            shell.beside(partial(take, queue)),
            shell.beside(partial(good.__aexit__, None, None, None)),
            shell.beside(partial(bad.__aexit__, ValueError, error, None)),
        ]
        await events.wait_for("retry_attempt")  # of the claim, which emits events; the others have started too
        migration.finish()
    assert await asyncio.wait_for(asyncio.gather(*calls), LIMIT_SECONDS) == [True, b"claimed", False, False]
    assert sorted(name for name in events.names if not name.startswith(("retry", "claim"))) == [
        "ack/success",
        "ack/success",
        "completed/success",
        "completed/success",
        "failed/failure",
        "nack/success",
        "publish/success",
    ]
    assert await take(queue) == b"published"
    assert shell.listed(queue.key.failed) == [b"failed"]
    assert sorted(shell.listed(queue.key.completed)) == [b"acked", b"claimed", b"published"]


# Everything at once


@pytest.mark.promise("A migrating slot or a dying node loses and duplicates nothing.")
async def test_traffic_continues_while_the_slot_moves(shell: Shell, cluster: Cluster, migrate: Migrate) -> None:
    """Three producers, two consumers and a handler that holds a message all the time: each message is handled once."""
    queue = shell.queue("orders", **KEPT, **LONG_BUDGET)
    await queue.publish("held")
    published, handled = ["held"], []
    enough = threading.Event()
    traffic: list[Any] = []

    async def produce(number: int) -> None:
        while not enough.is_set() and len(published) < 3000:
            text = f"{number}: {len(published)}"
            assert await queue.publish(text) is True
            published.append(text)
            await asyncio.sleep(0.002)

    async def consume() -> None:
        consumer = shell.queue("orders", wait=0.1, **KEPT, **LONG_BUDGET)
        while (message := await take(consumer)) is not None or not enough.is_set():
            handled.append(message)

    async def flow() -> None:
        wanted = len(handled) + 20
        assert await until(lambda: len(handled) >= wanted or any(one.done() for one in traffic)), "no message arrives"
        for one in traffic:
            if one.done():  # too early: it has failed
                await one

    async with queue.process_message():
        traffic += [shell.beside(partial(produce, number)) for number in range(3)]
        traffic += [shell.beside(consume) for _ in range(2)]
        await flow()
        with migrate(cluster, queue.key.pending) as migration:
            for key in migration.left():
                migration.move(key)
                await asyncio.sleep(0.02)
            migration.finish()
        await flow()
    enough.set()
    await asyncio.wait_for(asyncio.gather(*traffic), LIMIT_SECONDS)
    while (message := await take(shell.queue("orders", wait=0, **KEPT))) is not None:
        handled.append(message)
    handled = [message.decode() for message in handled if message is not None]
    assert sorted(["held", *handled]) == sorted(published)
    assert sorted(shell.listed(queue.key.completed)) == sorted(text.encode() for text in published)
    assert cluster.leftovers(queue) == {queue.key.completed.encode()}


# Leases


async def test_a_heartbeat_keeps_its_lease_while_the_slot_moves(
    shell: Shell, cluster: Cluster, migrate: Migrate
) -> None:
    """Renewals are refused or done, never partially: the lease is there after the migration."""
    events = shell.events()
    queue = shell.queue(
        "orders", wait=0, on_event=events.listen, heartbeat_interval_seconds=0.03, **KEPT, **LONG_BUDGET
    )
    await leave_a_returned_message(shell, queue)
    await take_from_its_holder(shell, queue)
    await queue.publish("held")
    async with queue.process_message():
        with migrate(cluster, queue.key.pending) as migration:
            await asyncio.sleep(0.2)  # some renewals meet a slot before any key has moved
            for key in migration.left():
                migration.move(key)
                await asyncio.sleep(0.02)
            migration.finish()
        await events.wait_for("lease_renew", len(events.of("lease_renew")) + 2)
        assert queue.current_message().lease_lost is False
        assert shell.redis.zcard(queue.key.leases) == shell.processing(queue) == 1
    assert events.names[-2:] == ["ack/success", "completed/success"]


async def take_from_its_holder(shell: Shell, queue: Any) -> None:
    """Only the requeued message keeps `deliveries` alive, requeued by hand."""
    message_id, stored = next(iter(shell.redis.hgetall(queue.key.processing).items()))
    shell.redis.zrem(queue.key.leases, *shell.leases(queue, message_id.hex()))
    shell.redis.lpush(queue.key.pending, stored)
    shell.redis.hdel(queue.key.processing, message_id)


@pytest.mark.promise("A migrating slot or a dying node loses and duplicates nothing.")
async def test_the_token_fences_after_the_migration(shell: Shell, cluster: Cluster, migrate: Migrate) -> None:
    """A holder that lost its lease before the migration can change nothing after it; the new holder can."""
    events = shell.events()
    queue = shell.queue("orders", wait=0, on_event=events.listen, **KEPT)
    await queue.publish("a")
    async with queue.process_message():
        shell.lapse(queue)
        second = shell.queue("orders", wait=0, **KEPT)
        successor = second.process_message()
        assert await successor.__aenter__() == b"a"
        with migrate(cluster, queue.key.pending) as migration:
            migration.finish()
    assert events.names[-1] == "stale_lease_ack/skipped"
    assert shell.processing(queue) == 1
    await successor.__aexit__(None, None, None)
    assert shell.listed(queue.key.completed) == [b"a"]
    assert cluster.leftovers(queue) == {queue.key.completed.encode()}


async def test_a_lease_continues_after_the_migration(shell: Shell, cluster: Cluster, migrate: Migrate) -> None:
    """When it ends, the message is redelivered with its count; after too many deliveries it becomes a dead letter."""
    queue = shell.queue("orders", wait=LONG, visibility_timeout_seconds=0.2, max_delivery_count=2)
    await queue.publish("a")
    await claim_and_die(queue)
    with migrate(cluster, queue.key.pending) as migration:
        migration.finish()
    async with holding(queue):
        assert queue.current_message().delivery_count == 2
    shell.lapse(queue)
    assert await take(shell.queue("orders", wait=0, max_delivery_count=2)) is None
    assert shell.listed(queue.key.dead_letter) == [b"a"]


# Waiting and remembering


async def test_a_waiting_consumer_follows_its_queue(shell: Shell, cluster: Cluster, migrate: Migrate) -> None:
    """Its blocking read ends at the old node and starts again at the new one, where a publish wakes it up."""
    queue = shell.queue("orders", wait=LONG)
    consumer = shell.beside(partial(take, queue))
    assert await until(lambda: cluster.blocked() == 1)
    with migrate(cluster, queue.key.pending) as migration:
        migration.finish()
    target = cluster.owner(queue.key.pending)
    assert await until(lambda: int(target.redis.info("clients")["blocked_clients"]) == 1)
    await shell.queue("orders").publish("a")
    assert await asyncio.wait_for(consumer, LIMIT_SECONDS) == b"a"


async def test_deduplication_remembers_across_the_migration(shell: Shell, cluster: Cluster, migrate: Migrate) -> None:
    """The keys move with the queue and keep their remaining lifetime."""
    queue = shell.queue("orders", deduplication=True, window=1000)
    assert await queue.publish("a") is True
    with migrate(cluster, queue.key.pending) as migration:
        migration.finish()
    assert await queue.publish("a") is False
    assert shell.pending(queue) == 1
    (marker,) = (key for key in cluster.every_key() if b"::deduplication::" in key)
    assert 0 < shell.redis.ttl(marker) <= 1000
