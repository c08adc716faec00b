"""Batches, loops, tenants, delays, operators and hand-offs on a cluster, also while slots move and primaries change."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self

import pytest
import redis
import redis.asyncio
from redis.crc import key_slot

from redis_message_queue import RetryPolicy
from redis_message_queue.embedded import EmbeddedRedis
from tests.concurrency import LIMIT_SECONDS
from tests.contract.loops import running
from tests.contract.shells import Awaited, Shell, Wiring, claim_and_die, take, until
from tests.faults.proxy import FaultyProxy
from tests.topologies.cluster import Cluster
from tests.topologies.migration import Migration
from tests.topologies.replication import await_replication
from tests.topologies.sentinels import SentinelSet, Watched

Migrate = Callable[[Cluster, str], Migration]

LONG = 3 * LIMIT_SECONDS  # a wait that no test waits out
# Short pauses, so that a call notices the end of a migration or failover soon.
LONG_BUDGET = {"retry_budget_seconds": 2 * LIMIT_SECONDS, "retry_max_delay_seconds": 0.05}
KEPT = {"enable_completed_queue": True, "max_completed_length": None, "enable_failed_queue": True}
BEATING = {"visibility_timeout_seconds": 60, "heartbeat_interval_seconds": 0.05}
AT_ONCE: dict[str, Any] = {"initial_delay_seconds": 0, "jitter": 0}

every_reply = pytest.mark.parametrize(
    "wiring", [Wiring(decode_responses=True, protocol=2), Wiring(protocol=3)], ids=str
)
side_by_side = pytest.mark.parametrize("concurrency", [1, 3])


@pytest.fixture
def topology(request: pytest.FixtureRequest) -> Any:
    """The shared cluster, unless a test needs one that it may break."""
    return request.getfixturevalue(getattr(request, "param", "cluster"))


class MovingAddress(FaultyProxy):
    """Two servers behind one address, like a DNS name or a load balancer: it leads to the one that accepts writes."""

    def __init__(self, primary: EmbeddedRedis, replica: EmbeddedRedis) -> None:
        super().__init__(primary.port)
        self._primary, self._replica = Watched(primary), Watched(replica)

    def __enter__(self) -> Self:
        self._replica.follow(self._primary)
        super().__enter__()
        self.onlooker = self.client()
        return self

    def __exit__(self, *error: Any) -> None:
        for client in (self.onlooker, self._primary.redis, self._replica.redis):
            client.close()
        super().__exit__(*error)

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(host=EmbeddedRedis.host, port=self.port, **options)

    def async_client(self, **options: Any) -> redis.asyncio.Redis:
        return redis.asyncio.Redis(host=EmbeddedRedis.host, port=self.port, **options)

    def replicate(self) -> None:
        await_replication(self._primary.redis, "a free key")

    def switch_over(self) -> None:
        """The roles change; connections to the old primary stay open."""
        self._replica.redis.execute_command("REPLICAOF", "NO", "ONE")
        self._primary, self._replica = self._replica, self._primary
        self._replica.follow(self._primary)
        self._server = (EmbeddedRedis.host, self._primary.port)
        self.onlooker.connection_pool.disconnect()


@pytest.fixture
def moving_address(start_server: Callable[..., EmbeddedRedis]) -> Iterator[MovingAddress]:
    config = {"repl-diskless-sync-delay": 0}
    with MovingAddress(start_server(config=config), start_server(config=config)) as started:
        yield started


def text(message: Any) -> str:
    payload: str | bytes = message.payload
    return payload if isinstance(payload, str) else payload.decode()


def words(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number:04}" for number in range(count)]


def tenant(queue: Any, name: str) -> Any:
    return Awaited(queue.queue.tenant(name))


def complete(message: Any, *results: tuple[Any, ...]) -> Any:
    return Awaited(message).complete(publish=[(target.queue, *rest) for target, *rest in results])


def completed(shell: Shell, queue: Any) -> list[str]:
    """The handled messages, sorted."""
    return sorted(payload.decode() for payload in shell.listed(queue.key.completed))


def leftovers(cluster: Cluster, queue: Any) -> set[str]:
    """The last words of the queue's keys, without those that expire or do not matter."""
    prefix = f"{queue.key.prefix}{queue.key.separator}"
    names = {key.decode().removeprefix(prefix) for key in cluster.every_key() if key.startswith(prefix.encode())}
    return {
        name
        for name in names
        if not name.startswith(("wakeup", "reply", "records", "deduplication", "tenant_dedup", "weights", "meta"))
    }


# On a cluster as on one server


@every_reply
async def test_many_messages_are_published_at_once(shell: Shell, cluster: Cluster) -> None:
    """In chunks, with duplicates, for a tenant and with a delay: all keys are in one slot, no tag in the name."""
    queue = shell.queue("orders", wait=0, deduplication=True)
    many = words(1_200)
    assert await queue.publish_many([*many, "0007"]) == [True] * len(many) + [False]
    assert await queue.publish_many(["0001", "a", "a", "b"], tenant="żółć") == [True, True, False, True]
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert await queue.publish_many(["c", "d"], at=tomorrow) == [True, True]
    assert await queue.publish_many(["e"], tenant="acme", delay_seconds=1000) == [True]
    stats = await queue.stats()
    assert (stats.pending, stats.delayed, stats.tenants) == (1_203, 3, 1)
    assert [text(one) for one in await Awaited(queue).peek(5)] == ["0001", "0000", "a", "0001", "b"]
    assert {key_slot(key) for key in cluster.every_key()} == {key_slot(b"orders")}
    assert all(not node.keys() for node in cluster.bystanders(queue.key.pending))


@every_reply
async def test_a_batch_is_claimed_settled_and_requeued(shell: Shell, cluster: Cluster) -> None:
    """One by one, together, and back to the front in order."""
    queue = shell.queue("orders", wait=0, **KEPT, **BEATING)
    await queue.publish_many(words(6))
    async with queue.process_messages(3) as batch:
        assert [text(message) for message in batch] == words(3)
        assert await batch.ack(batch[1]) is True
        assert await batch.fail(batch[0], ValueError("no")) is True
    with pytest.raises(LookupError):
        async with queue.process_messages(10) as batch:
            await complete(batch[2])
            raise LookupError
    assert [text(one) for one in await Awaited(queue).peek()] == ["0003", "0004"]
    async with queue.process_messages(10) as batch:
        assert [message.delivery_count for message in batch] == [2, 2]
    assert completed(shell, queue) == words(6)[1:]
    assert [text(one) for one in await queue.records("failed")] == ["0000"]
    assert leftovers(cluster, queue) == {"completed", "failed"}


@side_by_side
async def test_a_loop_handles_every_message_once(shell: Shell, cluster: Cluster, concurrency: int) -> None:
    """One by one and in batches; later messages wake it up, and unhandled ones are requeued."""
    queue = shell.queue("orders", **KEPT, **BEATING)
    await queue.publish_many(words(60))
    handled: list[str] = []
    async with running(
        shell, queue, lambda message: handled.append(text(message)), concurrency=concurrency, prefetch=8
    ) as loop:
        assert await until(lambda: len(handled) == 60)
        assert await until(lambda: cluster.blocked() == 1)
        await shell.queue("orders").publish_many(words(40, "later "))
        assert await until(lambda: len(handled) == 100)
    summary = await loop
    assert (summary.handled, summary.failed, summary.requeued) == (100, 0, 0)
    assert sorted(handled) == completed(shell, queue) == [*words(60), *words(40, "later ")]

    batches = shell.queue("orders", **KEPT)
    await batches.publish_many(words(50))
    sizes: list[int] = []
    summary = await batches.run(
        lambda messages: sizes.append(len(messages)), concurrency=concurrency, batch_size=20, until_empty=True
    )
    assert (sum(sizes), max(sizes), summary.handled) == (50, 20, 50)
    assert leftovers(cluster, queue) == {"completed"}


async def test_tenants_take_turns(shell: Shell, cluster: Cluster) -> None:
    """By their weights; a tenant queue can be counted, inspected and deleted separately."""
    queue = shell.queue("orders", wait=0, tenant_weights={"acme": 3}, max_pending_per_tenant=50)
    await queue.publish_many(words(20), tenant="acme")
    await queue.publish_many(words(20), tenant="bolt")
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish_many(words(31), tenant="bolt")
    async with queue.process_messages(16) as batch:
        assert Counter(message.tenant for message in batch) == {"acme": 12, "bolt": 4}
    assert await Awaited(queue).tenants() == {"acme": 8, "bolt": 16}
    assert [text(one) for one in await Awaited(queue).peek(2, tenant="bolt")] == ["0004", "0005"]
    acme = tenant(queue, "acme")
    assert (await acme.length(), await acme.exists(), await acme.delete(), await acme.exists()) == (8, True, 8, False)
    assert (await queue.run(lambda message: None, prefetch=5, until_empty=True)).handled == 16
    assert leftovers(cluster, queue) == set()


async def test_delays_retries_and_expiry_work(shell: Shell, cluster: Cluster) -> None:
    """Due messages wake up a loop, failed ones are retried until given up, and expired ones are not delivered."""
    policy = RetryPolicy(max_attempts=3, initial_delay_seconds=0.05, give_up_on=(KeyError,))
    queue = shell.queue("orders", retry_policy=policy, **KEPT)
    seen: Counter[str] = Counter()

    def handle(message: Any) -> None:
        seen[text(message)] += 1
        if text(message) == "hopeless":
            raise KeyError
        if text(message) == "poison" or (text(message) == "flaky" and seen["flaky"] < 3):
            raise TimeoutError

    async with running(shell, queue, handle, concurrency=2, prefetch=3) as loop:
        assert await until(lambda: cluster.blocked() == 1)
        for word in ("poison", "flaky", "hopeless"):
            await queue.publish(word, delay_seconds=0.1, tenant="acme")
        assert await until(lambda: shell.redis.llen(queue.key.dead_letter) == 2 and completed(shell, queue))
    assert seen == {"poison": 3, "flaky": 3, "hopeless": 1}
    summary = await loop
    assert (summary.dead_lettered, summary.retried, summary.handled) == (2, 4, 1)
    reasons = {text(one): one.reason for one in await queue.records("dead_letters")}
    assert reasons == {"poison": "attempts used up", "hopeless": "given up"}
    assert completed(shell, queue) == ["flaky"]

    hasty = shell.queue("orders", wait=0, message_ttl_seconds=0.001)
    await hasty.publish_many(["old"])
    await asyncio.sleep(0.01)
    assert await take(hasty) is None
    assert (await queue.records("dead_letters"))[0].reason == "expired"
    assert leftovers(cluster, queue) == {"completed", "dlq"}


@every_reply
async def test_every_operator_call_works(shell: Shell, cluster: Cluster) -> None:
    """Counting, inspecting, purging and redriving, on the node that has the queue."""
    policy = RetryPolicy(max_attempts=1)
    queue = shell.queue("orders", wait=0, retry_policy=policy, deduplication=True, **KEPT)
    tools = Awaited(queue)
    await queue.publish_many(["done", "dead 1", "dead 2"])
    await take(queue)
    async with queue.process_messages(2) as batch:
        for message in batch:
            await batch.fail(message, ValueError(text(message)))
    await queue.publish_many(["a", "b"])
    await queue.publish_many(["c", "d", "e"], tenant="acme")
    await queue.publish("f", delay_seconds=1000)
    await claim_and_die(queue)
    stats = await tools.stats()
    assert (stats.pending, stats.processing, stats.delayed, stats.tenants) == (4, 1, 1, 1)
    assert (stats.completed, stats.failed, stats.dead_letters) == (1, 0, 2)
    assert stats.oldest_pending_seconds >= 0
    for source, count in {"pending": 4, "processing": 1, "delayed": 1, "completed": 1, "failed": 0}.items():
        assert len(await tools.peek(source=source)) == count, source
    assert [one.error for one in await tools.records()] == ["dead 2", "dead 1"]
    assert await tools.tenants() in ({"acme": 3}, {"acme": 2})
    summary = await tools.redrive_dead_letters(dry_run=True)
    assert (summary.matched, summary.redriven) == (2, 0)
    summary = await tools.redrive_dead_letters(respect_deduplication=True)
    assert (summary.matched, summary.redriven, summary.suppressed) == (2, 0, 2)
    summary = await tools.redrive_dead_letters(where=shell.callback(lambda one: text(one) == "dead 1"))
    assert (summary.matched, summary.redriven) == (1, 1)
    targets = ("orphans", "pending", "delayed", "completed", "failed", "dead_letters")
    assert [await tools.purge(target) for target in targets] == [0, 5, 1, 1, 0, 1]
    shell.lapse(queue)
    assert await take(queue) is not None
    assert leftovers(cluster, queue) == {"completed"}


# From one queue to another


async def test_a_message_is_handed_off_to_queues_that_share_its_tag(shell: Shell, cluster: Cluster) -> None:
    """From a batch and from a loop, even if each queue has its own client."""
    source = shell.queue("{orders}in", wait=0, **KEPT)
    near = shell.queue("{orders}out", wait=0, deduplication=True)
    far = shell.queue("{orders}mail", wait=0, client=shell.new_client())
    await source.publish_many(words(10))
    async with source.process_messages(2) as batch:
        await complete(batch[0], (near, "same"), (far, "letter", {"tenant": "acme"}))
        await complete(batch[1], (near, "same"), (far, "letter", {"delay_seconds": 1000}))
    await source.run(
        shell.handler(lambda message: complete(message, (near, text(message)))), prefetch=4, until_empty=True
    )
    assert completed(shell, source) == words(10)
    assert [text(one) for one in await Awaited(near).peek(20)] == ["same", *words(10)[2:]]
    stats = await far.stats()
    assert (stats.pending, stats.tenants, stats.delayed) == (1, 1, 1)
    assert leftovers(cluster, source) == {"completed"}


async def test_a_message_cannot_be_handed_off_to_another_slot(shell: Shell, cluster: Cluster) -> None:
    """It is refused before anything happens; the error says how to name the queues."""
    source, target = shell.queue("orders", wait=0, **KEPT), shell.queue("bills")
    await source.publish("a")
    async with source.process_messages(1) as batch:
        before = {key: value for node in cluster.dump().values() for key, value in node.items()}
        with pytest.raises(shell.module.ConfigurationError, match=r"share a hash tag.*'\{orders\}bills'") as refusal:
            await complete(batch[0], (target, "b"))
        assert (refusal.value.queue, refusal.value.operation) == ("bills", "complete")
        assert {key: value for node in cluster.dump().values() for key, value in node.items()} == before
    assert completed(shell, source) == ["a"]


# While the slot moves


async def test_every_call_during_a_migration_is_done_once_afterwards(shell: Shell, cluster: Cluster) -> None:
    """Each call starts during the migration, is refused, is repeated, and is done once."""
    options = {"wait": 0, "deduplication": True, **KEPT, **LONG_BUDGET}
    queue = shell.queue("{orders}in", retry_policy=RetryPolicy(max_attempts=2, **AT_ONCE), **options)
    results = shell.queue("{orders}out", **options)
    weighty = shell.queue("{orders}in", tenant_weights={"bolt": 2}, **options)
    tools = Awaited(queue)
    await queue.publish_many(["acked", "failed", "handed", "rest 1", "rest 2"])
    settled = queue.process_messages(5)
    batch = await settled.__aenter__()
    await queue.publish_many(["back 1", "back 2"])
    requeued = queue.process_messages(2)
    await requeued.__aenter__()
    await queue.publish_many(["gone 1", "gone 2"], tenant="gone")
    await queue.publish_many(["here 1", "here 2"], tenant="bolt")
    await queue.publish("delayed_messages", delay_seconds=1000)
    error = LookupError("in the block")

    with Migration(cluster, queue.key.pending) as migration:
        migration.move(migration.left()[0])
        settling = [
            shell.beside(partial(batch.ack, batch[0])),
            shell.beside(partial(batch.fail, batch[1], ValueError("again"))),
            shell.beside(lambda: complete(batch[2], (results, "result"), (queue, "late", {"tenant": "acme"}))),
            shell.beside(partial(requeued.__aexit__, LookupError, error, None)),
        ]
        calls = {
            "publish_many": partial(queue.publish_many, ["new 1", "new 2", "acked"], tenant="acme"),
            "delay": partial(queue.publish_many, ["new 3"], delay_seconds=1000),
            "delete": tenant(queue, "gone").delete,
            "length": tenant(queue, "bolt").length,
            "tenants": tools.tenants,
            "stats": tools.stats,
            "peek": partial(tools.peek, source="processing"),
            "records": tools.records,
            "redrive": tools.redrive_dead_letters,
            "purge": partial(tools.purge, "failed"),
            "claim": partial(take_many, weighty, 1),
        }
        begun: dict[str, Any] = {name: shell.beside(call) for name, call in calls.items()}
        await asyncio.sleep(0.2)  # each of them has been refused by now
        refused = [name for name, one in begun.items() if not one.done()]
        migration.finish()
    assert await asyncio.wait_for(asyncio.gather(*settling), LIMIT_SECONDS) == [True, True, None, None]
    done = dict(zip(begun, await asyncio.wait_for(asyncio.gather(*begun.values()), LIMIT_SECONDS), strict=True))
    # A call for a single key may be redirected to the target node and gets its reply there.
    assert {"publish_many", "delay", "delete", "purge"} <= set(refused)
    assert "claim" in refused or not done["claim"]  # it has no time to wait, so it may have ended with nothing
    assert done["publish_many"] == [True] * 3  # a key of another tenant suppresses nothing
    assert (done["delay"], done["purge"], done["redrive"].matched, done["records"]) == ([True], 0, 0, [])
    assert done["delete"] + done["claim"].count("gone 1") + done["claim"].count("gone 2") == 2
    await settled.__aexit__(None, None, None)
    assert await tools.purge("delayed") in (2, 3)  # a failed message may have been retried in the meantime
    rest = [*done["claim"]]
    while some := await take_many(queue, 100):
        rest += some
    expected = ["acked", "back 1", "back 2", "here 1", "here 2", "late", "new 1", "new 2"]
    assert sorted(set(rest) - {"failed", "gone 1", "gone 2"}) == expected
    assert max(Counter(rest).values()) == 1
    assert await take_many(results, 10) == ["result"]
    assert {"acked", "handed", "rest 1", "rest 2", *expected} <= set(completed(shell, queue))
    assert leftovers(cluster, queue) == {"completed"}


async def take_many(queue: Any, count: int) -> list[str]:
    """Claim a batch and ack it."""
    async with queue.process_messages(count, wait_seconds=0) as batch:
        return [text(message) for message in batch]


class Traffic:
    """Publishers, a loop and an operator on one queue during a fault. Records what went in and came out."""

    def __init__(self, shell: Shell, name: str) -> None:
        self.published: list[str] = []
        self.handled: list[str] = []
        self.events = shell.events()
        self._shell = shell
        self._enough = threading.Event()
        policy = RetryPolicy(max_attempts=5, **AT_ONCE)
        options = {"retry_policy": policy, "tenant_weights": {"bolt": 2}, **KEPT, **LONG_BUDGET, **BEATING}
        self.queue = shell.queue(f"{{{name}}}", **options)
        self.results = shell.queue(f"{{{name}}}results", wait=0, **LONG_BUDGET)
        # The loop has its own object, because a drain ends it.
        self.worker = shell.queue(f"{{{name}}}", on_event=self.events.listen, **options)
        self._work: list[Any] = []

    async def start(self) -> None:
        self.loop = asyncio.ensure_future(self.worker.run(self._shell.handler(self._handle), concurrency=3, prefetch=5))
        self._work = [self._shell.beside(partial(self._publish, number)) for number in range(2)]
        self._work.append(self._shell.beside(self._operate))
        await self.flow()

    async def flow(self) -> None:
        """Wait until messages arrive."""
        wanted = len(self.handled) + 40

        def has_news() -> bool:
            return len(self.handled) >= wanted or any(one.done() for one in (*self._work, self.loop))

        assert await until(has_news, 2 * LIMIT_SECONDS), "no message arrives"
        for one in (*self._work, self.loop):
            if one.done():  # too early: it has failed
                await one
                raise AssertionError("ended too early")

    async def stop(self) -> Any:
        """Stop publishing, and let the loop handle the rest."""
        self._enough.set()
        await asyncio.wait_for(asyncio.gather(*self._work), 2 * LIMIT_SECONDS)

        def is_over() -> bool:
            return self.loop.done() or set(self.handled) >= set(self.published)

        assert await until(is_over, 2 * LIMIT_SECONDS), set(self.published) - set(self.handled)
        await self.worker.drain(timeout=0)
        self._shell.redis.lpush(self.queue.key.wakeup, "1")
        return await asyncio.wait_for(self.loop, LIMIT_SECONDS)

    async def _publish(self, number: int) -> None:
        turn = 0
        while not self._enough.is_set() and len(self.published) < 3_000:
            turn += 1
            some = words(6, f"{number}/{turn}/")
            kinds: list[dict[str, Any]] = [{}, {"tenant": "acme"}, {"tenant": "bolt"}, {"delay_seconds": 0.02}]
            assert await self.queue.publish_many(some, **kinds[turn % 4]) == [True] * 6
            self.published += some
            await asyncio.sleep(0.01)

    async def _handle(self, message: Any) -> None:
        word = text(message)
        await asyncio.sleep(0.001)
        if word.endswith("3") and message.delivery_count == 1 and word not in self._failed:
            self._failed.add(word)
            raise ValueError("once")
        if word.endswith("5"):
            await complete(message, (self.results, word))
        self.handled.append(word)

    _failed: set[str] = set()  # noqa: RUF012  words are unlike in all tests

    async def _operate(self) -> None:
        tools = Awaited(self.queue)
        while not self._enough.is_set():
            await tools.stats()
            await tools.tenants()
            await tools.peek(3)
            await tools.records("completed", max_records=3)
            assert await tools.purge("failed") == 0
            assert (await tools.redrive_dead_letters()).matched == 0
            await asyncio.sleep(0.02)


async def test_everything_continues_while_the_slot_moves(shell: Shell, cluster: Cluster, migrate: Migrate) -> None:
    """Publishers of batches, a loop with failures and hand-offs, an operator: each message is handled once."""
    traffic = Traffic(shell, f"moving {shell.name} {migrate.__name__}")
    queue = traffic.queue
    await traffic.start()
    with migrate(cluster, queue.key.pending) as migration:
        for key in migration.left():
            migration.move(key)
            await asyncio.sleep(0.01)
        migration.finish()
    await traffic.flow()
    summary = await traffic.stop()
    assert sorted(traffic.handled) == sorted(traffic.published)
    assert completed(shell, queue) == sorted(traffic.published)
    assert (summary.handled, summary.requeued) == (len(traffic.published), 0)
    handed = sorted(one for one in traffic.published if one.endswith("5"))
    assert sorted(await take_many(traffic.results, 1_000)) == handed
    assert traffic.events.of("stale_lease_ack") == traffic.events.of("cleanup_failed") == []
    assert leftovers(cluster, queue) == {"completed"}


async def test_a_batch_keeps_its_leases_while_the_slot_moves(shell: Shell, cluster: Cluster, migrate: Migrate) -> None:
    """One heartbeat for all its messages, including those of tenants and of a second delivery."""
    events = shell.events()
    queue = shell.queue("orders", wait=0, on_event=events.listen, **KEPT, **LONG_BUDGET, **BEATING)
    await queue.publish_many(words(3))
    await queue.publish_many(words(3, "acme "), tenant="acme")
    await claim_and_die(queue)
    shell.lapse(queue)
    async with queue.process_messages(10) as batch:
        assert len(batch) == 6
        with migrate(cluster, queue.key.pending) as migration:
            for key in migration.left():
                migration.move(key)
                await asyncio.sleep(0.05)
            migration.finish()
        await events.wait_for("lease_renew", len(events.of("lease_renew")) + 12)
        assert not any(message.lease_lost for message in batch)
    assert completed(shell, queue) == sorted([*words(3), *words(3, "acme ")])
    assert events.of("stale_lease_renew") == events.of("stale_lease_ack") == []
    assert leftovers(cluster, queue) == {"completed"}


# While a primary is replaced, or none is there


async def test_a_cluster_that_is_down_briefly_is_retried(shell: Shell, cluster: Cluster) -> None:
    """One slot without a node is enough: every node refuses everything, and all calls are repeated."""
    queue = shell.queue("orders", wait=0, tenant_weights={"acme": 2}, **KEPT, **LONG_BUDGET)
    await queue.publish_many(words(4), tenant="acme")
    tools, owner = Awaited(queue), cluster.owner(queue.key.pending)
    own = key_slot(b"orders")
    slot = next(one for (one, _), port in cluster.layout().items() if port == owner.port and one != own)
    owner.cluster("DELSLOTS", slot)
    try:
        assert await until(lambda: not owner.is_healthy(len(cluster.nodes)))
        calls = [
            *(tools.stats, tools.tenants, tools.peek, tools.records, tenant(queue, "acme").length),
            *(tools.redrive_dead_letters, partial(tools.purge, "failed"), partial(take_many, queue, 1)),
            *(partial(queue.publish_many, ["late"]), partial(queue.run, lambda message: None, until_empty=True)),
        ]
        begun: list[Any] = [shell.beside(call) for call in calls]
        await asyncio.sleep(0.2)
        assert not any(one.done() for one in begun)
    finally:
        owner.cluster("ADDSLOTS", slot)
        cluster.settle()
    await asyncio.wait_for(asyncio.gather(*begun), LIMIT_SECONDS)
    await queue.run(lambda message: None, until_empty=True)
    assert completed(shell, queue) == [*words(4), "late"]
    assert leftovers(cluster, queue) == {"completed"}


def name_on(cluster: Cluster, replica: Any, prefix: str) -> str:
    """A tag whose queues are on the primary that has the replica."""
    primary = replica.redis.info("replication")["master_port"]
    names = (f"{prefix}-{number}" for number in range(1000))
    return next(name for name in names if cluster.owner(f"{{{name}}}").port == primary)


@pytest.mark.parametrize("topology", ["killable_cluster"], indirect=True)
async def test_a_loop_continues_on_a_promoted_replica(shell: Shell, topology: Cluster) -> None:
    """Replicated messages are handled; a publish, a batch and a hand-off during the failover are done once."""
    replica = topology.replica
    name = name_on(topology, replica, shell.name)
    options = {**KEPT, **LONG_BUDGET, **BEATING}
    queue = shell.queue(f"{{{name}}}", **options)
    # By a client that notices the failover by itself, and later.
    results = shell.queue(f"{{{name}}}results", wait=0, client=shell.new_client(), **LONG_BUDGET)
    await results.stats()
    handled: list[str] = []
    opened = threading.Event()

    async def handle(message: Any) -> None:
        assert await until(opened.is_set, 2 * LIMIT_SECONDS)
        await complete(message, (results, text(message)))
        handled.append(text(message))

    await queue.publish_many(words(12))
    primary = topology.owner(queue.key.pending)
    worker = shell.queue(f"{{{name}}}", **options)
    async with running(shell, worker, shell.handler(handle), concurrency=3, prefetch=6) as loop:
        assert await until(lambda: shell.processing(queue) >= 6)
        await_replication(primary.redis, queue.key.prefix)
        primary.server.kill()
        late = shell.beside(partial(queue.publish_many, words(6, "late "), tenant="acme"))
        looking = shell.beside(Awaited(queue).tenants)
        opened.set()
        await asyncio.sleep(0.2)  # for a while no server is there
        topology.promote(replica)
        assert await asyncio.wait_for(late, 2 * LIMIT_SECONDS) == [True] * 6
        await asyncio.wait_for(looking, 2 * LIMIT_SECONDS)
        assert await until(lambda: loop.done() or len(handled) >= 18, 2 * LIMIT_SECONDS), handled
    summary = await loop
    everything = sorted([*words(12), *words(6, "late ")])
    assert sorted(handled) == completed(shell, queue) == everything
    assert sorted(await take_many(results, 100)) == everything
    assert (summary.handled, summary.failed, summary.requeued) == (18, 0, 0)
    topology.revive(primary)
    assert leftovers(topology, queue) == {"completed"}


@pytest.mark.parametrize("topology", ["sentinels"], indirect=True)
async def test_a_loop_follows_the_primary_that_sentinel_names(shell: Shell, topology: SentinelSet) -> None:
    """The old primary stays up and replies READONLY; no call of the loop, a batch or an operator stays there."""
    await follow_a_switch(shell, topology)


@pytest.mark.parametrize("topology", ["moving_address"], indirect=True)
async def test_a_loop_follows_an_address_that_leads_to_another_primary(shell: Shell, topology: MovingAddress) -> None:
    """Open connections still lead to the old primary, now a replica: they are replaced by new ones."""
    await follow_a_switch(shell, topology)


async def follow_a_switch(shell: Shell, topology: SentinelSet | MovingAddress) -> None:
    """A handler runs in the meantime: its ack travels with the next claim, on an old connection."""
    options = {**KEPT, **LONG_BUDGET, "visibility_timeout_seconds": 60}
    queue, worker = shell.queue("orders", **options), shell.queue("orders", **options)
    weighty = shell.queue("orders", wait=0, client=shell.new_client(), tenant_weights={"acme": 2}, **options)
    await weighty.stats()  # it is connected before it writes the weight of a tenant
    handled: list[str] = []
    opened = threading.Event()

    async def handle(message: Any) -> None:
        handled.append(text(message))
        assert await until(opened.is_set, 2 * LIMIT_SECONDS)

    await queue.publish_many(["before"])
    assert await take_many(queue, 1) == ["before"]  # the old primary has every script by now
    await queue.publish_many(words(3))
    async with running(shell, worker, shell.handler(handle), prefetch=3) as loop:
        assert await until(lambda: len(handled) == 1)
        await asyncio.to_thread(topology.replicate)
        await asyncio.to_thread(topology.switch_over)
        opened.set()
        assert await until(lambda: loop.done() or len(completed(shell, queue)) == 4, LIMIT_SECONDS), handled
        weighing = shell.beside(partial(take_many, weighty, 1))
        assert await asyncio.wait_for(weighing, 2 * LIMIT_SECONDS) == []
        looking = shell.beside(Awaited(queue).tenants)
        assert await asyncio.wait_for(looking, 2 * LIMIT_SECONDS) == {}
        publishing = shell.beside(partial(queue.publish_many, words(10, "late "), tenant="acme"))
        assert await asyncio.wait_for(publishing, 2 * LIMIT_SECONDS) == [True] * 10
        assert await until(lambda: loop.done() or len(handled) == 13, 2 * LIMIT_SECONDS), handled
    summary = await loop
    assert handled == [*words(3), *words(10, "late ")]
    assert (summary.handled, summary.failed, summary.requeued) == (13, 0, 0)
    assert completed(shell, queue) == [*words(3), "before", *words(10, "late ")]
