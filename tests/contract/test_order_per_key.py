"""Strict order per key: with the key as tenant and a limit of one, a key's messages are handled one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import defaultdict
from typing import Any

import pytest

from redis_message_queue import RetryLater, RetryPolicy
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
                del self._running[key]

    @property
    def total(self) -> int:
        return sum(map(len, self.handled.values()))


def ordered(shell: Shell, **options: Any) -> Any:
    return shell.queue(**{"wait": 0, "partitions": PARTITIONS, "max_in_flight_per_tenant": 1} | options)


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
    "With `max_in_flight_per_tenant=1`, the messages of a tenant are handled one at a time in the order in which they "
    "were published, also if consumers crash and batches are requeued."
)
@pytest.mark.parametrize("seed", range(3))
async def test_the_messages_of_a_key_are_handled_in_their_order_one_at_a_time(shell: Shell, seed: int) -> None:
    """Several consumers, whose handlers succeed, raise, or die with their messages."""
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
                        fate = fates.choice([None, None, Failed, Died])
                        async with order.handling(message.tenant, message.json()["number"]):
                            if fate is not None:
                                raise fate
                        await batch.ack(message)
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
