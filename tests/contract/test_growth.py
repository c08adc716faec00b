"""Growing a queue that is in use: the new partitions have what belongs to the queue; the number never goes down."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

import redis_message_queue
from redis_message_queue import ConfigurationError, PartitionCountError, StateVersionError
from redis_message_queue.stored.keys import QueueKeys, partition_keys
from tests.concurrency import LIMIT_SECONDS, start
from tests.contract.shells import Awaited, Losses, LossyRedis, Shell, script_name, take

pytestmark = pytest.mark.topic("Partitions")

GROWTHS = pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 4)], ids=["from-one", "from-two"])


def parted(shell: Shell, count: int, **options: Any) -> Any:
    queue = shell.queue(**{"wait": 0, "partitions": count} | options)
    if shell.redis.hlen("q::meta") == 1:  # the shell has written the version alone
        shell.redis.delete("q::meta")
    return queue


def part(queue: Any, number: int) -> Any:
    return Awaited(queue.queue.partition(number))


def metas(shell: Shell, count: int) -> list[dict[bytes, bytes]]:
    """The state of each partition."""
    keys = QueueKeys.of("q")
    return [shell.redis.hgetall(partition_keys(keys, number, count).meta) for number in range(count)]


async def publish_everywhere(queue: Any, count: int, each: int, **details: Any) -> None:
    for number in range(count):
        await part(queue, number).publish_many([f"{number}-{nth}" for nth in range(each)], **details)


class Meanwhile(Losses):
    """Does something before a client sends one of its requests."""

    def __init__(self, act: Callable[[], Any], *, nth: int = 1, only: str | None = None) -> None:
        super().__init__()
        self._act, self._nth, self._script = act, nth, only
        self.happened = False

    def before(self, command: str, *arguments: Any) -> None:
        if command != "EVALSHA" or self._script not in (None, script_name(arguments[0])):
            return
        self.sent += 1
        if self.sent == self._nth:
            self.happened = True
            self._act()

    def after(self, command: str, *arguments: Any) -> None:
        pass


def client_with(shell: Shell, losses: Losses) -> Any:
    client = shell.lossy_client()
    client.losses = losses
    return client


def other(shell: Shell, count: int, **options: Any) -> redis_message_queue.RedisMessageQueue:
    """A queue object of another process, which blocks in both shells."""
    chosen = {"message_wait_interval_seconds": 0, "partitions": count} | options
    return redis_message_queue.RedisMessageQueue("q", client=shell.redis, **chosen)


def grow_to(shell: Shell, count: int) -> None:
    """As another operator does, who reads the number first."""
    other(shell, int(shell.redis.hget("q::meta", "partitions"))).grow_partitions(count)


# -- what belongs to the queue


@pytest.mark.promise("`grow_partitions()` keeps a queue paused: nobody gets a message of the new partitions either.")
@GROWTHS
async def test_a_paused_queue_is_paused_after_it_has_grown(shell: Shell, before: int, after: int) -> None:
    old = parted(shell, before)
    await old.publish("first")
    await Awaited(old).pause()
    await Awaited(old).grow_partitions(after)
    queue = parted(shell, after)
    assert await Awaited(queue).is_paused() is True
    assert (await queue.stats()).paused is True
    await publish_everywhere(queue, after, 5)
    assert [await take(queue) for _ in range(2 * after)] == [None] * (2 * after)
    assert await Awaited(queue).resume() is True
    summary = await queue.run(shell.callback(lambda message: None), until_empty=True)
    assert summary.handled == 5 * after + 1


@pytest.mark.promise("`grow_partitions()` keeps tenants paused, in the new partitions, too.")
@GROWTHS
async def test_paused_tenants_are_paused_after_their_queue_has_grown(shell: Shell, before: int, after: int) -> None:
    old = parted(shell, before)
    await old.publish("first", tenant="acme")
    for tenant in ("acme", "zeta"):
        await Awaited(old).pause(tenant=tenant)
    since = await Awaited(old).paused_tenants()
    await Awaited(old).grow_partitions(after)
    queue = parted(shell, after)
    assert await Awaited(queue).paused_tenants() == since
    assert [(await part(queue, number).stats()).paused_tenants for number in range(after)] == [2] * after
    await publish_everywhere(queue, after, 5, tenant="acme")
    await publish_everywhere(queue, after, 1, tenant="free")
    seen: list[Any] = []
    await queue.run(shell.callback(lambda message: seen.append(message.tenant)), until_empty=True)
    assert seen == ["free"] * after
    assert await Awaited(queue).resume(tenant="acme") is True
    assert [(await part(queue, number).stats()).paused_tenants for number in range(after)] == [1] * after
    assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 5 * after + 1


@pytest.mark.promise("`grow_partitions()` gives the new partitions the journal and the weights of the queue.")
@GROWTHS
async def test_new_partitions_have_the_journal_and_the_weights(shell: Shell, before: int, after: int) -> None:
    """Whoever uses them first, and whatever that client asks for."""
    old = parted(shell, before, journal="payload", max_journal_length=77, tenant_weights={"acme": 3})
    for number in range(before):
        await (part(old, number) if before > 1 else old).publish("a")
    await Awaited(parted(shell, before)).grow_partitions(after)
    queue = parted(shell, after)
    await publish_everywhere(queue, after, 1, tenant="acme")
    for number, meta in enumerate(metas(shell, after)):
        assert (meta[b"version"], meta[b"journal"], meta[b"journal_soft"], meta[b"journal_hard"]) == (
            *(b"1", b"1", b"77", b"770"),
        ), number
        keys = queue.queue.partition(number).key
        assert shell.redis.hgetall(keys.weights) == {b"acme": b"3"}
        assert shell.redis.xlen(keys.journal) == 1 + (number < before)
    assert len({meta[b"journal_identity"] for meta in metas(shell, after)}) == after, "each journal has its own"


async def test_hundreds_of_paused_tenants_and_weights_are_in_the_new_partitions(shell: Shell) -> None:
    names = [f"tenant {number}" for number in range(1_300)]
    old = parted(shell, 2, tenant_weights=dict.fromkeys(names, 2))
    await publish_everywhere(old, 2, 1)
    other_one = other(shell, 2)
    for name in names:
        other_one.pause(tenant=name)
    await Awaited(parted(shell, 2)).grow_partitions(3)
    meta = metas(shell, 3)[2]
    assert {field for field in meta if field.startswith(b"paused:")} == {f"paused:{name}".encode() for name in names}
    assert meta[b"paused_tenants"] == b"1300"
    assert shell.redis.hlen(partition_keys(QueueKeys.of("q"), 2, 3).weights) == 1_300


@pytest.mark.promise("What belongs to the queue is in the new partitions before the number of partitions changes.")
@GROWTHS
async def test_at_each_point_of_a_growth_the_new_partitions_are_paused(shell: Shell, before: int, after: int) -> None:
    """Wherever the growth is interrupted: who has the new number already finds a paused queue, and no client a
    message."""
    cut, seen = 0, set()
    while len(seen) < 2 or cut < 12:
        cut += 1
        shell.redis.flushall()
        old = parted(shell, before, client=(client := shell.lossy_client()), retry_budget_seconds=0, journal=True)
        await old.publish("a")
        await Awaited(old).pause()
        client.losses.pass_on(cut - 1)
        client.losses.reply()
        with contextlib.suppress(redis.exceptions.ConnectionError):
            await Awaited(old).grow_partitions(after)
        count = int(shell.redis.hget("q::meta", "partitions"))
        seen.add(count)
        queue = parted(shell, count)
        assert await Awaited(queue).is_paused() is True, f"after {cut} requests"
        if count == after:
            assert all(meta.get(b"journal") == b"0" for meta in metas(shell, count)[before:]), f"after {cut} requests"
        await publish_everywhere(queue, count, 1) if count > 1 else await queue.publish("b")
        assert [await take(queue) for _ in range(2 * count)] == [None] * (2 * count)
    assert seen == {before, after}


@pytest.mark.promise("A pause or a resume that meets a growth holds for all partitions, the new ones included.")
@pytest.mark.parametrize("tenant", [None, "acme"])
@pytest.mark.parametrize("pauses", [True, False])
async def test_a_pause_that_meets_a_growth_holds_for_all_partitions(
    shell: Shell, tenant: str | None, pauses: bool
) -> None:
    """An object with the old number pauses while the growth is at any point, and the other way round."""
    for nth in range(1, 14):
        shell.redis.flushall()
        first = parted(shell, 2)
        await publish_everywhere(first, 2, 1)
        if not pauses:
            await Awaited(first).pause(tenant=tenant)
        operator = other(shell, 2)

        def change() -> None:
            with contextlib.suppress(PartitionCountError):  # it came too late, and has changed nothing
                (operator.pause if pauses else operator.resume)(tenant=tenant)  # noqa: B023

        losses = Meanwhile(change, nth=nth)
        await Awaited(parted(shell, 2, client=client_with(shell, losses))).grow_partitions(4)
        found = await agreed(shell, 4, tenant)
        if nth == 1:
            assert found is pauses
        if not losses.happened:
            assert nth > 6
            break


@pytest.mark.parametrize("pauses", [True, False])
async def test_a_growth_that_meets_a_pause_loses_none(shell: Shell, pauses: bool) -> None:
    """The whole growth happens between two requests of a pause."""
    for nth in (1, 2, 3):
        shell.redis.flushall()
        first = parted(shell, 3)
        await publish_everywhere(first, 3, 1)
        if not pauses:
            await Awaited(first).pause()
        losses = Meanwhile(lambda: other(shell, 3).grow_partitions(5), nth=nth, only="pause")
        operator = Awaited(parted(shell, 3, client=client_with(shell, losses)))
        if nth == 1:
            with pytest.raises(PartitionCountError):
                await (operator.pause() if pauses else operator.resume())
        else:
            assert await (operator.pause() if pauses else operator.resume()) is True
        assert losses.happened
        assert await agreed(shell, 5, None) is (pauses if nth > 1 else not pauses)


async def agreed(shell: Shell, count: int, tenant: str | None) -> bool:
    """Whether all partitions are paused; fails if they disagree."""
    queue = parted(shell, count)
    states = [await part(queue, number).is_paused(tenant=tenant) for number in range(count)]
    assert len(set(states)) == 1, states
    return bool(states[0])


async def test_pauses_and_growths_of_many_operators_agree_in_the_end(shell: Shell) -> None:
    """Operators pause and resume all the time, each with the number that it reads, while the queue grows."""
    await publish_everywhere(parted(shell, 2), 2, 1)
    is_over, failures = threading.Event(), []

    def operate() -> None:
        try:
            while not is_over.is_set():
                queue = other(shell, int(shell.redis.hget("q::meta", "partitions")))
                with contextlib.suppress(PartitionCountError):
                    queue.pause(tenant="acme")
                    queue.resume(tenant="acme")
        except Exception as error:
            failures.append(error)

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        for count in range(3, 9):
            await Awaited(parted(shell, count - 1)).grow_partitions(count)
            await asyncio.sleep(0.02)
    finally:
        is_over.set()
        operator.join()
    assert not failures
    await agreed(shell, 8, "acme")


async def test_a_client_with_the_new_number_brings_the_other_partitions_along(shell: Shell) -> None:
    """A growth that died after the first partition: the next client with the new number does the rest."""
    old = parted(shell, 3, client=(client := shell.lossy_client()), retry_budget_seconds=0)
    await publish_everywhere(old, 3, 2)
    await Awaited(old).pause()
    client.losses = Meanwhile(_die, nth=2, only="grow_partition")
    with pytest.raises(redis.exceptions.ConnectionError):
        await Awaited(old).grow_partitions(4)
    assert shell.redis.hget("q::meta", "partitions") == b"4"
    assert shell.redis.hget("q::partition::1::meta", "partitions") == b"3"
    queue = parted(shell, 4)
    assert await Awaited(queue).resume() is True
    assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 6
    assert await agreed(shell, 4, None) is False
    with pytest.raises(PartitionCountError):
        await take(old)


def _die() -> None:
    raise redis.exceptions.ConnectionError("the process was killed")


async def test_a_partition_that_is_opened_with_the_old_number_meanwhile_grows_as_well(shell: Shell) -> None:
    """An object with the old number asks the first partition before the growth, and opens another one during it."""
    await part(parted(shell, 2), 0).publish("first")
    has_asked, go = threading.Event(), threading.Event()

    def wait() -> None:
        has_asked.set()
        go.wait(LIMIT_SECONDS)

    def go_on() -> None:
        go.set()
        publishing.result(LIMIT_SECONDS)

    with LossyRedis.from_url(shell.server.url) as client:
        client.losses = Meanwhile(wait, nth=2, only="open_queue")
        slow = redis_message_queue.RedisMessageQueue("q", client=client, partitions=2)
        publishing = start(slow.partition(1).publish, "second")
        assert has_asked.wait(LIMIT_SECONDS)
        losses = Meanwhile(go_on, nth=2, only="open_queue")
        assert await Awaited(parted(shell, 2, client=client_with(shell, losses))).grow_partitions(4) == 2
    assert losses.happened
    assert (await parted(shell, 4).run(shell.callback(lambda message: None), until_empty=True)).handled == 2


async def test_a_queue_of_a_newer_release_does_not_grow(shell: Shell) -> None:
    queue = parted(shell, 2)
    await publish_everywhere(queue, 2, 1)
    shell.redis.hset("q::meta::2", "version", 2)
    before = {key: shell.redis.dump(key) for key in shell.redis.keys("*") if b"reply" not in key}
    with pytest.raises(StateVersionError):
        await Awaited(parted(shell, 2)).grow_partitions(4)
    assert {key: shell.redis.dump(key) for key in shell.redis.keys("*") if b"reply" not in key} == before


async def test_a_partition_that_lost_its_state_is_paused_again(shell: Shell) -> None:
    """A node that comes back empty: its partition gets what belongs to the queue from the first one."""
    queue = parted(shell, 3, journal=True)
    await publish_everywhere(queue, 3, 1)
    await Awaited(queue).pause()
    for key in shell.redis.keys("q::partition::2::*"):
        shell.redis.delete(key)
    await part(parted(shell, 3), 2).publish("again")
    assert await agreed(shell, 3, None) is True
    assert metas(shell, 3)[2][b"journal"] == b"0"


# -- the number


@pytest.mark.promise("The number of partitions never goes down, whoever grows a queue at the same time.")
@GROWTHS
async def test_a_slow_growth_does_not_take_partitions_away(shell: Shell, before: int, after: int) -> None:
    """A larger growth happens while a smaller one is at any point: the smaller one is refused, or was complete."""
    for nth in range(1, 60):  # each request of the growth
        shell.redis.flushall()
        first = parted(shell, before)
        await (publish_everywhere(first, before, 1) if before > 1 else first.publish("a"))

        def grow() -> None:
            grow_to(shell, 6)
            queue = other(shell, 6)
            for number in range(6):
                queue.partition(number).publish("b")

        losses = Meanwhile(grow, nth=nth)
        slow = Awaited(parted(shell, before, client=client_with(shell, losses)))
        if losses_before_the_end := nth < 3:
            with pytest.raises(ConfigurationError, match="partitions must be at least 6, which the queue has already"):
                await slow.grow_partitions(after)
        else:
            with contextlib.suppress(ConfigurationError):
                await slow.grow_partitions(after)
        if not losses.happened:
            assert nth > 4
            return
        assert [shell.redis.hget(f"{name}::meta", "partitions") for name in names(6)] == [b"6"] * 6
        queue = parted(shell, 6)
        assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 6 + before, nth
        assert losses_before_the_end or nth >= 3
    pytest.fail("the growth has no end")


def names(count: int) -> list[str]:
    return ["q", *(f"q::partition::{number}" for number in range(1, count))]


async def test_two_growths_to_the_same_number_are_one(shell: Shell) -> None:
    for nth in range(1, 8):
        shell.redis.flushall()
        await publish_everywhere(parted(shell, 2), 2, 1)
        losses = Meanwhile(lambda: grow_to(shell, 4), nth=nth)
        assert await Awaited(parted(shell, 2, client=client_with(shell, losses))).grow_partitions(4) == 2
        assert losses.happened
        queue = parted(shell, 4)
        await publish_everywhere(queue, 4, 1)
        assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 6


@pytest.mark.promise("A number of partitions that was once larger is not accepted as smaller, by growing or by use.")
async def test_a_first_partition_with_an_older_number_is_not_grown_to_less(shell: Shell) -> None:
    """As after a failover of its node to a replica that missed the growth: `grow_partitions` repairs that."""
    old = parted(shell, 2)
    await publish_everywhere(old, 2, 2)
    stale = {key: shell.redis.dump(key) for key in (b"q::meta", b"q::meta::2")}
    await Awaited(parted(shell, 2)).grow_partitions(6)
    await publish_everywhere(parted(shell, 6), 6, 1)
    shell.redis.delete("q::meta::6")
    for key, value in stale.items():
        shell.redis.restore(key, 0, value, replace=True)
    with pytest.raises(ConfigurationError, match="partitions must be at least 6"):
        await Awaited(parted(shell, 2)).grow_partitions(4)
    with pytest.raises(PartitionCountError):
        await publish_everywhere(parted(shell, 2), 2, 1)
    with pytest.raises(PartitionCountError):
        await parted(shell, 6).stats()
    assert await Awaited(parted(shell, 2)).grow_partitions(6) == 6
    queue = parted(shell, 6)
    assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 4 + 6 + 1


async def test_consumers_go_on_while_their_queue_grows(shell: Shell) -> None:
    """A program that starts again with the number it finds loses nothing, however the growth runs beside it."""
    await publish_everywhere(parted(shell, 2), 2, 20)
    handled: list[Any] = []
    for count in (3, 5, 6):
        old = parted(shell, count - 1 if count != 5 else 3)
        async with old.process_message() as message:
            handled.append(message)
        await Awaited(old).grow_partitions(count)
        await publish_everywhere(parted(shell, count), count, 3)
    queue = parted(shell, 6)
    await queue.run(shell.callback(lambda message: handled.append(message.payload)), until_empty=True)
    assert len(handled) == 40 + 9 + 15 + 18
