"""Strict order per key: with the key as tenant and a limit of one, a key's messages are handled one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import defaultdict
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, RetryLater, RetryPolicy
from redis_message_queue.stored.envelope import TOKEN_BYTES
from redis_message_queue.stored.partitioning import partition_of
from tests.contract.shells import Awaited, Died, Shell, claim_and_die, fail, take, until
from tests.contract.test_partitions import keys_for

pytestmark = pytest.mark.topic("Partitions")

MESSAGES = 8  # for each key
PARTITIONS = 3


class Failed(Exception):
    """What a handler raises."""


class Order:
    """Watches handlers: what they have handled of each key, and which of them run."""

    def __init__(self) -> None:
        self.handled: dict[str, list[int]] = defaultdict(list)
        self.attempts: dict[str, list[int]] = defaultdict(list)
        self.broken: list[str] = []
        self._running: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextlib.asynccontextmanager
    async def handling(self, key: str, number: int) -> Any:
        """A handler works on this message; others have time to do the wrong thing meanwhile."""
        with self._lock:
            if key in self._running:
                self.broken.append(f"{key}: {number} beside {self._running[key]}")
            self._running[key] = number
            self.attempts[key].append(number)
        try:
            await asyncio.sleep(0.001)
            yield
            with self._lock:
                self.handled[key].append(number)
        finally:
            with self._lock:
                self._running.pop(key, None)

    @property
    def total(self) -> int:
        return sum(map(len, self.handled.values()))


def ordered(shell: Shell, **options: Any) -> Any:
    return shell.queue(**{"wait": 0, "partitions": PARTITIONS, "ordered_tenants": True} | options)


def part_of(queue: Any, key: str) -> Any:
    return queue.queue.partition(partition_of(key, PARTITIONS))


def make_due(shell: Shell, queue: Any, key: str) -> None:
    """End the pause of the message of this key that waits for its next attempt."""
    leases = part_of(queue, key).key.leases
    (held,) = [one for one in shell.redis.zrange(leases, 0, -1) if len(one) == TOKEN_BYTES]
    shell.redis.zadd(leases, {held: 1.0})


async def publish_all(queue: Any, keys: list[str]) -> None:
    for number in range(MESSAGES):
        for key in keys:
            await queue.publish({"number": number}, tenant=key)


def leases_of(shell: Shell, queue: Any, batch: Any) -> dict[str, list[bytes]]:
    """The leases of a batch that its consumer has just claimed, by the keys where they are."""
    ids = {message.id for message in batch}
    keys = [queue.queue.partition(number).key.leases for number in range(PARTITIONS)]
    return {key: [one for one in shell.redis.zrange(key, 0, -1) if one.hex()[:32] in ids] for key in keys}


def end(shell: Shell, leases: dict[str, list[bytes]]) -> None:
    """Let the time of a consumer that died be over. What it has acknowledged has no lease any more."""
    for key, held in leases.items():
        if held:
            shell.redis.zadd(key, dict.fromkeys(held, 1.0), xx=True)


@pytest.mark.promise(
    "With `ordered_tenants=True`, messages of a tenant are handled one at a time in their order, also if they are "
    "retried, requeued, or their consumer crashes."
)
@pytest.mark.parametrize("seed", range(3))
async def test_the_messages_of_a_key_are_handled_in_their_order_one_at_a_time(shell: Shell, seed: int) -> None:
    """Several consumers, whose handlers succeed, raise, want another attempt, or die with their messages."""
    keys, order = keys_for(2, of=PARTITIONS), Order()
    await publish_all(ordered(shell), keys)

    async def consume(fates: random.Random) -> None:
        queue = ordered(shell, max_delivery_count=None)
        while order.total < MESSAGES * len(keys) and not order.broken:
            leases: dict[str, list[bytes]] = {}
            try:
                async with queue.process_messages(fates.choice([1, 3])) as batch:
                    leases = leases_of(shell, queue, batch)
                    for message in batch:
                        fate = fates.choice([None, None, None, Failed, Died, RetryLater(0.01)])
                        with contextlib.suppress(RetryLater):
                            async with order.handling(message.tenant, message.json()["number"]):
                                if fate is not None:
                                    raise fate
                        if fate is None:
                            await batch.ack(message)
                        else:
                            await batch.fail(message, fate)
            except Failed:
                pass  # it was requeued, and so was the rest of the batch
            except Died:
                end(shell, leases)

    await asyncio.gather(*(shell.beside(lambda n=n: consume(random.Random(10 * seed + n))) for n in range(4)))
    assert not order.broken
    assert order.handled == {key: list(range(MESSAGES)) for key in keys}
    assert all(attempts == sorted(attempts) for attempts in order.attempts.values())
    assert any(len(attempts) > MESSAGES for attempts in order.attempts.values())


async def test_loops_keep_the_order_too(shell: Shell) -> None:
    """With many workers that claim ahead, in two processes' worth of objects. What fails for good leaves a gap."""
    keys, order = keys_for(2, of=PARTITIONS), Order()
    await publish_all(ordered(shell), keys)

    async def handle(message: Any) -> None:
        number = message.json()["number"]
        async with order.handling(message.tenant, number):
            if number == 3:
                raise Failed

    async def run() -> Any:
        queue = ordered(shell, enable_failed_queue=True)
        return await queue.run(shell.handler(handle), concurrency=3, prefetch=4, until_empty=True)

    await asyncio.gather(*(shell.beside(run) for _ in range(2)))
    assert not order.broken
    await until(lambda: order.total == (MESSAGES - 1) * len(keys))
    assert order.handled == {key: [number for number in range(MESSAGES) if number != 3] for key in keys}
    assert all(attempts == list(range(MESSAGES)) for attempts in order.attempts.values())


async def test_a_crash_holds_its_key_and_no_other(shell: Shell) -> None:
    queue = ordered(shell)
    first, second = keys_for(1, of=PARTITIONS)[:2]
    await queue.publish_many(["a1", "a2"], tenant=first)
    await queue.publish("b1", tenant=second)
    taken = {await claim_and_die(queue), await claim_and_die(queue)}
    assert taken == {shell.payload("a1"), shell.payload("b1")}
    assert await take(queue) is None


@pytest.mark.promise(
    "With `ordered_tenants=True`, a message that waits for its next attempt holds up its tenant alone."
)
@pytest.mark.parametrize("outcome", [ValueError("no answer"), RetryLater(60)], ids=["policy", "outcome"])
async def test_a_retry_comes_before_the_others_of_its_key(shell: Shell, outcome: Exception) -> None:
    queue = ordered(shell, retry_policy=RetryPolicy(max_attempts=3, initial_delay_seconds=60), journal=True)
    first, second = keys_for(1, of=PARTITIONS)[:2]
    await queue.publish_many(["a1", "a2"], tenant=first)
    with contextlib.suppress(ValueError):
        async with queue.process_message():
            raise outcome
    assert await take(queue) is None
    await queue.publish("b1", tenant=second)
    assert [await take(queue), await take(queue)] == [shell.payload("b1"), None]
    stats = await queue.stats()
    assert (stats.pending, stats.processing, stats.delayed) == (1, 1, 0)
    (waiting,) = await Awaited(queue).peek(source="processing")
    found = await Awaited(queue).get(waiting.id)
    assert (waiting.payload, waiting.consumer, found.consumer) == (shell.payload("a1"), None, None)
    make_due(shell, queue, first)
    async with queue.process_message() as message:
        assert message == shell.payload("a1")
        current = queue.current_message()
        assert (current.attempt, current.delivery_count) == (2, 1)  # a failure does not count as a crash
        assert await take(queue) is None
        told = [entry.event for entry in await Awaited(queue).trace(current.id)]
    assert told == ["published", "claimed", "retried", "claimed"]
    assert [await take(queue), await take(queue)] == [shell.payload("a2"), None]


async def test_attempts_that_are_used_up_let_the_next_one_go(shell: Shell) -> None:
    queue = ordered(shell, retry_policy=RetryPolicy(max_attempts=2, initial_delay_seconds=60))
    (key, *_) = keys_for(1, of=PARTITIONS)
    await queue.publish_many(["a1", "a2"], tenant=key)
    await fail(queue, ValueError("no answer"))
    assert await take(queue) is None
    make_due(shell, queue, key)
    await fail(queue, ValueError("no answer"))
    assert [one.payload for one in await queue.records("dead_letters")] == [shell.payload("a1")]
    assert [await take(queue), await take(queue)] == [shell.payload("a2"), None]


async def test_a_waiting_consumer_gets_the_retry_when_it_is_due(shell: Shell) -> None:
    queue = ordered(shell, wait=30, retry_policy=RetryPolicy(max_attempts=3, initial_delay_seconds=0.05))
    await queue.publish_many(["a1", "a2"], tenant="a")
    await fail(queue, ValueError("no answer"))
    assert [await take(queue), await take(queue)] == [shell.payload("a1"), shell.payload("a2")]


async def test_whoever_lost_a_message_cannot_put_it_off(shell: Shell) -> None:
    """The consumer that asked for another attempt has no lease any more, and neither has one that died before it."""
    queue, other = ordered(shell, partitions=1), ordered(shell, partitions=1)
    await queue.publish_many(["a1", "a2"], tenant="a")
    with contextlib.suppress(Died):
        async with queue.process_messages(1) as lost:
            shell.lapse(queue)
            async with other.process_messages(1) as batch:
                assert [one.payload for one in batch] == [shell.payload("a1")]
                assert await batch.fail(batch[0], RetryLater(60))
            assert not await lost.fail(lost[0], RetryLater(0))
            raise Died
    assert await take(queue) is None
    shell.lapse(queue)
    assert [await take(queue), await take(queue)] == [shell.payload("a1"), shell.payload("a2")]


async def test_messages_without_a_tenant_are_retried_as_ever(shell: Shell) -> None:
    queue = ordered(shell, partitions=1)
    await queue.publish_many(["1", "2"])
    async with queue.process_message():
        raise RetryLater(60)
    assert [await take(queue), await take(queue)] == [shell.payload("2"), None]
    shell.ripen(queue)
    assert await take(queue) == shell.payload("1")


async def test_what_contradicts_the_order_is_refused(shell: Shell) -> None:
    with pytest.raises(ConfigurationError, match="not max_in_flight_per_tenant=2"):
        ordered(shell, max_in_flight_per_tenant=2)
    with pytest.raises(ConfigurationError, match="ordered_tenants=True needs a visibility timeout"):
        ordered(shell, visibility_timeout_seconds=None)
    with pytest.raises(ConfigurationError, match="ordered_tenants"):
        ordered(shell, ordered_tenants="yes")
    ordered(shell, max_in_flight_per_tenant=1)
