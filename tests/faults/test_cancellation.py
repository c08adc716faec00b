"""A cancelled task strands no message: the next call recovers a claimed message, and a handled one is acked."""

import asyncio
import contextlib
import random
import sys

import pytest
import redis.asyncio

from redis_message_queue import CleanupFailedError, RedisMessageQueue
from redis_message_queue.redis_py import client_port
from tests.concurrency import LIMIT_SECONDS, until
from tests.depth import often
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE, delayed
from tests.faults.stepping import Cancellation

pytestmark = pytest.mark.topic("Cancellation")


@pytest.fixture
def shell(async_shell):
    return async_shell


async def handle(queue, handled):
    async with queue.process_message() as message:
        if message is not None:
            handled.append(message)


async def ended(work):
    """Whether the work was cancelled, in its own task."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return task.cancelled()


@pytest.mark.promise("Cancelling or interrupting a consumer during a claim loses no message.")
@pytest.mark.parametrize("again", [0, 1, 2], ids=["once", "again at the next await", "again at the one after"])
def test_cancelling_a_consumer_at_every_await_loses_nothing(shell, proxy, truth, again):
    """Before the handler the message is recovered; after it the ack is sent, and then the cancellation goes on."""
    proxy.always("EVALSHA", delayed(0.005))  # so that no reply is there before it is awaited
    publisher = RedisMessageQueue("faults", client=truth.client)

    async def cancel_everywhere():
        awaits, broken_off, carried_through = 0, 0, 0
        while True:
            awaits += 1
            queue = shell.queue(shell.client(), enable_completed_queue=True)  # not connected yet
            publisher.publish("message")
            handled = []
            cancellation = Cancellation(awaits, awaits + again)
            await ended(cancellation.of(handle(queue, handled)))
            if handled:
                carried_through += 1
            else:
                broken_off += 1
                await handle(queue, handled)
            assert handled == [b"message"]
            assert truth.completed == [b"message"]
            assert truth.is_empty
            truth.client.delete(truth.key.completed)
            if not cancellation.came:
                return broken_off, carried_through

    broken_off, carried_through = shell.runner.run(cancel_everywhere())
    assert broken_off >= 3
    assert carried_through >= 1


@pytest.mark.promise("A cancellation during a successful ack takes effect after the ack.")
@pytest.mark.parametrize("times", [1, 3], ids=["once", "repeatedly"])
def test_cancelling_a_consumer_during_its_ack_finishes_the_ack(shell, proxy, truth, times):
    """The call is interrupted and repeated under its number: no redelivery. Then the task ends."""
    proxy.meet("settle", delayed(0.2))

    async def run():
        queue = shell.queue(enable_completed_queue=True)
        await queue.publish("message")
        consumer = asyncio.ensure_future(handle(queue, []))
        await asyncio.to_thread(until, lambda: proxy.seen["settle"])
        for _ in range(times):
            consumer.cancel()
            await asyncio.sleep(0.01)
        await asyncio.wait({consumer})
        return consumer.cancelled()

    assert shell.runner.run(run())
    assert truth.completed == [b"message"]
    assert truth.is_empty


@pytest.mark.parametrize("fault", [BLACK_HOLE, delayed(0.4, CUT_BEFORE), delayed(0.4, CUT_AFTER)], ids=str)
@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_a_deadline_during_a_failing_ack_is_a_failed_cleanup(shell, proxy, truth, fault, times, batch):
    """Without a budget the ack has one attempt. The error says that it failed, not only that time was up."""
    for _ in range(times or 0):
        proxy.meet("settle", fault)
    if times is None:
        proxy.always("settle", fault)

    async def run():
        queue = shell.queue(shell.client(socket_timeout=1), {"retry_budget_seconds": 0})
        await queue.publish("message")
        context = queue.process_messages(1) if batch else queue.process_message()
        with pytest.raises(CleanupFailedError) as raised:
            async with asyncio.timeout(None) as deadline, context:
                deadline.reschedule(asyncio.get_running_loop().time() + 0.15)
        return raised.value

    error = shell.runner.run(run())
    assert isinstance(error.__cause__, redis.RedisError)
    links = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__context__
    expected = TimeoutError if sys.version_info >= (3, 13) else asyncio.CancelledError
    assert any(isinstance(link, expected) for link in links), links
    assert truth.processing == (0 if fault.like(CUT_AFTER) else 1)


@pytest.mark.parametrize("budget", [0, 0.3])
@pytest.mark.parametrize("socket_timeout", [None, 0.5])
def test_cancelling_an_ack_repeatedly_does_not_extend_its_budget(
    shell, proxy, truth, monkeypatch, budget, socket_timeout
):
    """All attempts share one budget, or the time of one reply, however often the task is cancelled."""
    monkeypatch.setattr(client_port, "REPLY_TIMEOUT_SECONDS", 0.5)
    proxy.always("settle", BLACK_HOLE)

    async def run():
        client = shell.client(socket_timeout=socket_timeout)
        queue = shell.queue(client, {"retry_budget_seconds": budget})
        await queue.publish("message")
        consumer = asyncio.ensure_future(handle(queue, []))
        await asyncio.to_thread(until, lambda: proxy.seen["settle"])
        deadline = asyncio.get_running_loop().time() + LIMIT_SECONDS
        while not consumer.done() and asyncio.get_running_loop().time() < deadline:
            consumer.cancel()
            await asyncio.sleep(0.05)
        assert consumer.done(), "it goes on trying"
        with pytest.raises(CleanupFailedError):
            consumer.result()

    shell.runner.run(run())
    assert truth.processing == 1


@pytest.mark.promise("Cancelling or interrupting a consumer during a claim loses no message.")
def test_cancelling_the_recovery_of_a_claim_at_every_await_loses_nothing(shell, proxy, truth):
    """The first cancellation left an unconfirmed claim; the second one interrupts its recovery."""

    async def cancel_everywhere():
        awaits, broken_off = 0, 0
        while True:
            awaits += 1
            queue = shell.queue(shell.client(), gateway={"retry_budget_seconds": 0})
            await queue.publish("message")
            proxy.meet("claim", CUT_AFTER)
            with contextlib.suppress(redis.exceptions.ConnectionError):
                await handle(queue, [])
            assert truth.processing == 1
            proxy.meet("claim", delayed(0.005))
            handled = []
            cancellation = Cancellation(awaits)
            await ended(cancellation.of(handle(queue, handled)))
            proxy.relent()
            if not handled:
                broken_off += 1
                await handle(queue, handled)
            assert handled == [b"message"]
            assert truth.is_empty
            if not cancellation.came:
                return broken_off

    assert shell.runner.run(cancel_everywhere()) >= 1


@pytest.mark.promise("Cancelling or interrupting a consumer during a claim loses no message.")
def test_cancelling_consumers_at_random_moments_loses_and_duplicates_nothing(shell, truth):
    """Three consumers of one queue object, cancelled and restarted again and again."""
    expected = [f"message {number}" for number in range(often(100, 200))]

    async def run():
        chance = random.Random(7)
        queue = shell.queue(gateway={"message_wait_interval_seconds": 0.2}, enable_completed_queue=True)
        handled, cancelled = [], 0
        unsent = list(expected)
        deadline = asyncio.get_running_loop().time() + 5 * LIMIT_SECONDS
        while len(handled) < len(expected):
            assert asyncio.get_running_loop().time() < deadline, f"{len(handled)} were handled"
            for _ in range(min(len(unsent), chance.randrange(6))):
                await queue.publish(unsent.pop())
            tasks = [asyncio.ensure_future(handle(queue, handled)) for _ in range(3)]
            await asyncio.sleep(chance.choice((0.002, 0.005, 0.02)) * chance.random())
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            cancelled += sum(task.cancelled() for task in tasks)
        return handled, cancelled

    handled, cancelled = shell.runner.run(run())
    assert sorted(handled) == sorted(word.encode() for word in expected)
    assert sorted(truth.completed) == sorted(handled)
    assert cancelled > 15
    assert truth.is_empty


def test_a_cancelled_waiting_consumer_takes_no_message_with_it(shell, truth):
    """Neither the message nor its wake-up: the next consumer gets it at once."""

    async def run():
        queue = shell.queue(gateway={"message_wait_interval_seconds": 3 * LIMIT_SECONDS})
        for pause in (0.0, 0.002, 0.01, 0.05):
            waiter = asyncio.ensure_future(handle(queue, []))
            await asyncio.sleep(pause)
            waiter.cancel()
            await queue.publish("message")
            await asyncio.wait({waiter})
            if waiter.cancelled():
                handled = []
                await asyncio.wait_for(handle(queue, handled), LIMIT_SECONDS)
                assert handled == [b"message"]
            assert truth.is_empty

    shell.runner.run(run())
