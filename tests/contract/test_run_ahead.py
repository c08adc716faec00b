"""Prefetched messages are acked soon, never started too late, and not affected by another message's crash."""

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

import pytest

from tests.contract.loops import LONG, Crossing, ended, filled, look, running, side_by_side, summary_of, text, words
from tests.contract.shells import BEATING, Died, Shell, asyncio_only, until

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]

# Acked within a second


@pytest.mark.promise("A handled message is acked within a second, even while every worker is in a long handler.")
@side_by_side
async def test_a_handled_message_is_acked_while_every_worker_is_in_a_long_handler(
    shell: Shell, concurrency: int
) -> None:
    """Nobody claims, so the ack has nothing to travel with: it is sent by itself."""
    events = shell.events()
    queue, crossing = await filled(shell, words(1 + concurrency), on_event=events.listen), Crossing(shell)

    async def handle(message: Any) -> None:
        if text(message) != "0000":
            await crossing._wait(message)

    async with running(shell, queue, shell.handler(handle), prefetch=10, concurrency=concurrency) as loop:
        await crossing.is_entered_by(concurrency)
        await events.wait_for("ack")
        assert shell.processing(queue) == concurrency
        assert crossing.done == []
        crossing.is_open.set()
        await events.wait_for("ack", 1 + concurrency)
        await queue.drain()
        assert summary_of(await ended(loop)) == (1 + concurrency, 0, 0)


@pytest.mark.promise("A handled message is acked within a second, even while every worker is in a long handler.")
async def test_an_ack_that_redis_refuses_beside_a_handler_ends_the_loop(shell: Shell) -> None:
    """When that handler is done, with the same error as anywhere else; the messages are left to their leases."""
    events = shell.events()
    queue = await filled(shell, "ab", on_event=events.listen, enable_completed_queue=True)
    crossing = Crossing(shell)

    async def handle(message: Any) -> None:
        if text(message) == "b":
            await crossing._wait(message)

    async with running(shell, queue, shell.handler(handle), prefetch=2) as loop:
        await crossing.is_entered_by(1)
        shell.redis.set(queue.key.completed, "not a list")
        await events.wait_for("cleanup_failed")
        shell.redis.delete(queue.key.completed)
        crossing.is_open.set()
        with pytest.raises(shell.module.CleanupFailedError):
            await ended(loop)
    assert shell.processing(queue) == 1


@pytest.mark.promise("A handled message is acked within a second, even while every worker is in a long handler.")
@asyncio_only
async def test_a_cancellation_waits_for_an_ack_that_is_under_way_beside_the_handler(shell: Shell) -> None:
    """It counts, and the loop ends as cancelled."""
    events = shell.events()
    queue, crossing = await filled(shell, "ab", on_event=events.listen), Crossing(shell)

    async def handle(message: Any) -> None:
        if text(message) == "b":
            await crossing._wait(message)

    loop = asyncio.ensure_future(queue.run(handle, prefetch=2))
    await crossing.is_entered_by(1)
    await events.wait_for("ack")
    loop.cancel()
    await asyncio.wait({loop}, timeout=LONG)
    assert loop.cancelled()
    assert shell.processing(queue) == 1


# Begun in time


@pytest.mark.promise(
    "Without heartbeats, `run()` requeues prefetched messages before their lease ends, uncounted, and warns once "
    "about `prefetch`."
)
async def test_prefetched_messages_are_requeued_before_their_lease_ends(shell: Shell) -> None:
    """Without heartbeats: others get it, in its order, and as if it had never been claimed."""
    queue, crossing = await filled(shell, words(6), visibility_timeout_seconds=2), Crossing(shell)
    async with running(shell, queue, crossing.handler, prefetch=6, renew_leases=False) as loop:
        await crossing.is_entered_by(1)
        assert await until(lambda: shell.pending(queue) == 5)
        assert await look(shell) == [(word, 1) for word in words(6)[1:]]
        crossing.is_open.set()
        assert await until(lambda: len(crossing.done) == 1)
        await queue.drain()
        await ended(loop)
    assert crossing.inside == words(1)


@pytest.mark.promise(
    "Without heartbeats, `run()` requeues prefetched messages before their lease ends, uncounted, and warns once "
    "about `prefetch`."
)
async def test_slow_handlers_without_heartbeats_handle_each_message_once(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """Though all of them together take much longer than a lease, and other loops are waiting for what ends."""
    queue = await filled(shell, words(20), visibility_timeout_seconds=3, max_delivery_count=3)
    handled: list[tuple[str, int]] = []

    async def handle(message: Any) -> None:
        handled.append((text(message), message.delivery_count))
        await asyncio.sleep(0.3)

    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        options: dict[str, Any] = {"prefetch": 20, "until_empty": True, "renew_leases": False}
        loops = [queue.run(shell.handler(handle), **options) for _ in range(3)]
        summaries = await asyncio.gather(*loops)
    assert Counter(handled) == {(word, 1): 1 for word in words(20)}
    assert sum(summary.handled for summary in summaries) == 20
    assert shell.leftovers(queue) == set()
    warned = [record.getMessage() for record in caplog.records if "prefetch is 20" in record.getMessage()]
    assert 1 <= len(warned) <= 3  # once for each loop


@pytest.mark.promise("`run()` starts no message whose lease is lost or about to end.")
async def test_a_message_whose_lease_is_lost_is_not_started(shell: Shell) -> None:
    """Another consumer has taken it while it waited here; the loop says so and goes on with the next one."""
    events = shell.events()
    queue = await filled(shell, words(4), on_event=events.listen, **BEATING)
    other, crossing = shell.queue(wait=0), Crossing(shell)
    taken: list[str] = []

    async with running(shell, queue, crossing.handler, prefetch=4):
        await crossing.is_entered_by(1)
        # Two of those that wait are taken over, however quick the heartbeats are.
        while len(taken) < 2:
            claimed = {event.message_id for event in events.of("claim")[2:]}
            wanted = [token for token in shell.leases(queue) if token[:16].hex() in claimed]
            if wanted:
                shell.redis.zadd(queue.key.leases, dict.fromkeys(wanted, 1.0), xx=True)
            with contextlib.suppress(Died):
                async with other.process_messages(2) as batch:
                    taken += [text(message) for message in batch]
                    raise Died
        await events.wait_for("stale_lease_renew", 2)
        crossing.is_open.set()
        await events.wait_for("ack", 2)
        await events.wait_for("stale_lease_nack", 2)
    assert not set(taken) & set(crossing.inside)


# Never twice in one loop


@pytest.mark.promise("`batch_seconds` must be shorter than the lease unless heartbeats renew it.")
@pytest.mark.parametrize("batch_seconds", [2, 2.5, 60])
async def test_a_batch_that_fills_longer_than_a_lease_lasts_is_refused(shell: Shell, batch_seconds: float) -> None:
    """Unless heartbeats renew the leases meanwhile."""
    queue = shell.queue(visibility_timeout_seconds=2)
    with pytest.raises(shell.module.ConfigurationError, match=r"batch_seconds.*renew_leases"):
        await queue.run(
            lambda messages: None, batch_size=10, batch_seconds=batch_seconds, until_empty=True, renew_leases=False
        )
    options = {"batch_size": 10, "until_empty": True}
    for allowed, seconds in (
        (queue, batch_seconds),
        (shell.queue(visibility_timeout_seconds=None), batch_seconds),
        (queue, 1.9),
    ):
        assert summary_of(await allowed.run(lambda messages: None, batch_seconds=seconds, **options)) == (0, 0, 0)


@pytest.mark.promise(
    "If `run()` is given a message that it still holds, it continues under the new lease and handles it once."
)
async def test_a_message_whose_lease_ends_while_its_batch_fills_is_in_it_once(shell: Shell) -> None:
    """The loop is given it again, keeps one of it, and acks that."""
    queue, lists = await filled(shell, "a"), []

    def handle(messages: Any) -> None:
        lists.append([text(message) for message in messages])

    async with running(shell, queue, handle, batch_size=3, batch_seconds=200) as loop:
        assert await until(lambda: shell.processing(queue) == 1)
        shell.lapse(queue)
        await queue.publish("b")
        assert await until(lambda: lists)
        # If the loop looked before "b" was there, "a" came alone: then these fill the list that "b" waits in.
        await queue.publish_many(["c", "d"])
        assert await until(lambda: any("b" in some for some in lists))
        await queue.drain()
        await ended(loop)
    handled = [one for some in lists for one in some]
    assert (handled.count("a"), handled.count("b")) == (1, 1)
    assert shell.processing(queue) == 0


@pytest.mark.promise(
    "If `run()` is given a message that it still holds, it continues under the new lease and handles it once."
)
async def test_a_message_whose_lease_ends_in_its_handler_is_not_started_by_another_worker(shell: Shell) -> None:
    """Of the same loop: the handler goes on under the new lease, and its ack counts."""
    queue, crossing = await filled(shell, "a", wait=LONG), Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=2) as loop:
        await crossing.is_entered_by(1)
        shell.lapse(queue)
        await queue.publish("b")
        await crossing.is_entered_by(2)
        crossing.is_open.set()
        assert await until(lambda: shell.processing(queue) == 0)
        await queue.drain()
        assert summary_of(await ended(loop)) == (2, 0, 0)
    assert sorted(crossing.inside) == ["a", "b"]


# Alone


async def crash_with(shell: Shell, queue: Any, count: int, times: int = 1) -> None:
    """A consumer dies with so many messages in its hands, and their leases end; that often."""
    for _ in range(times):
        with contextlib.suppress(Died):
            async with queue.process_messages(count) as batch:
                assert len(batch) == count
                raise Died
        shell.lapse(queue)


@pytest.mark.promise("`run()` holds a redelivered message alone, so that a crash cannot take other messages with it.")
@pytest.mark.parametrize("options", [{"prefetch": 10}, {"batch_size": 10}, {"batch_size": 10, "batch_seconds": 1}])
async def test_a_message_that_was_delivered_before_is_held_alone(shell: Shell, options: dict[str, Any]) -> None:
    """Nothing that waits beside it, and nothing that is done and not acked, would die with it."""
    queue, seen = await filled(shell, words(4), wait=0), []
    await crash_with(shell, queue, 4)
    await queue.publish_many(words(8)[4:])

    def handle(given: Any) -> None:
        messages = given if isinstance(given, list) else [given]
        seen.append(([(text(message), message.delivery_count) for message in messages], shell.processing(queue)))

    assert summary_of(await queue.run(handle, until_empty=True, **options)) == (8, 0, 0)
    handled = [message for messages, _ in seen for message in messages]
    assert handled == [(word, 2) for word in words(4)] + [(word, 1) for word in words(8)[4:]]
    assert [held for messages, held in seen if messages[0][1] > 1] == [1] * 4
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("`run()` holds a redelivered message alone, so that a crash cannot take other messages with it.")
async def test_after_redelivered_messages_a_loop_claims_ahead_again(shell: Shell) -> None:
    """One, two, four: as many as it may once nothing suspicious comes any more."""
    queue, most = await filled(shell, ["suspect"], wait=0), 0
    await crash_with(shell, queue, 1)
    await queue.publish_many(words(40))

    def handle(message: Any) -> None:
        nonlocal most
        most = max(most, shell.processing(queue))

    await queue.run(handle, prefetch=16, until_empty=True)
    assert most == 16


@pytest.mark.promise("`run()` holds a redelivered message alone, so that a crash cannot take other messages with it.")
async def test_fresh_messages_before_a_redelivered_one_are_kept(shell: Shell) -> None:
    """The others go back behind nothing: every message is handled once, in its order."""
    queue, seen = await filled(shell, words(2), wait=0), []
    with contextlib.suppress(ValueError):
        async with queue.process_messages(2):
            raise ValueError  # it counts
    with contextlib.suppress(Died):
        async with queue.process_messages(1):
            raise Died
    fresh = shell.queue(wait=0)
    await fresh.publish("fresh", tenant="t")
    await queue.run(lambda message: seen.append((text(message), message.delivery_count)), prefetch=10, until_empty=True)
    assert sorted(seen) == [("0001", 2), ("fresh", 1)]


@pytest.mark.promise("`run()` holds a redelivered message alone, so that a crash cannot take other messages with it.")
@pytest.mark.parametrize(("crashes", "beside"), [(1, 2), (2, 1)])
async def test_workers_begin_redelivered_messages_one_by_one(shell: Shell, crashes: int, beside: int) -> None:
    """A second delivery may have others beside it, each claimed alone; from the third on one is handled by itself."""
    queue, crossing = await filled(shell, words(4), wait=0), Crossing(shell)
    await crash_with(shell, queue, 4, crashes)
    async with running(shell, queue, crossing.handler, concurrency=2, prefetch=10, until_empty=True) as loop:
        await crossing.is_entered_by(beside)
        await asyncio.sleep(0.3)
        assert len(crossing.inside) == shell.processing(queue) == beside
        assert shell.pending(queue) == 4 - beside
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (4, 0, 0)
    assert sorted(crossing.done) == words(4)
