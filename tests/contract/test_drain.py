"""A drained queue object refuses new work, waits for calls under way, and requeues what it may hold."""

import asyncio
import contextlib
import time
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, QueueBackpressureError, QueueDrainedError
from tests.contract.shells import LIMIT_SECONDS, Shell, take, until, with_unconfirmed_claim
from tests.tables import row

pytestmark = [pytest.mark.topic("Draining"), pytest.mark.both_shells]


@pytest.mark.promise('After a drain, `publish()` raises `QueueDrainedError("queue is drained")` and writes nothing.')
async def test_a_drained_queue_refuses_to_publish(shell: Shell) -> None:
    """Nothing is written, and the error says what happened, exactly so."""
    queue = shell.queue()
    assert await queue.drain() is True
    with pytest.raises(QueueDrainedError) as refusal:
        await queue.publish("a")
    assert str(refusal.value) == "queue is drained"
    assert (refusal.value.queue, refusal.value.operation) == ("q", "publish")
    assert shell.pending(queue) == 0


@pytest.mark.promise(
    "After a drain, `process_message()` gives `None` immediately and `process_message_callback()` returns `False`."
)
async def test_a_drained_queue_claims_nothing_and_does_not_wait(shell: Shell) -> None:
    """The message is there for others; no event tells of a look that was not taken."""
    events = shell.events()
    queue = shell.queue(wait=30, on_event=events.listen)
    await queue.publish("a")
    await queue.drain()
    events.clear()
    started = time.monotonic()
    assert await take(queue) is None
    assert time.monotonic() - started < LIMIT_SECONDS
    assert (shell.pending(queue), events.names) == (1, [])


@pytest.mark.promise("Draining affects one queue object only: other objects, and new ones, keep working.")
async def test_the_state_is_the_objects_own(shell: Shell) -> None:
    """Nothing is written to Redis: another object on the same keys goes on."""
    drained, other = shell.queue(), shell.queue()
    await drained.drain()
    assert (drained.queue.is_draining, drained.queue.is_drained) == (True, True)
    assert (other.queue.is_draining, other.queue.is_drained) == (False, False)
    assert await other.publish("a") is True
    assert await take(other) == b"a"


@pytest.mark.promise("`drain()` is also called `close()` in the sync queue and `aclose()` in the async queue.")
async def test_close_and_aclose_are_other_names_for_drain(shell: Shell) -> None:
    """Each shell has the name that its users expect."""
    queue = shell.queue()
    if shell.name == "sync":
        assert queue.queue.close(timeout=1) is True
    else:
        assert await queue.queue.aclose(timeout=1) is True
    assert queue.queue.is_drained


@pytest.mark.promise("A drain returns unconfirmed claims to the front of the queue without counting a delivery.")
async def test_a_drain_returns_an_unconfirmed_claim_to_the_front(shell: Shell) -> None:
    """At once, in its old place, and without counting as a delivery."""
    queue = await with_unconfirmed_claim(shell)
    other = shell.queue()
    await other.publish("b")
    assert await queue.drain(timeout=5) is True
    assert (shell.pending(queue), shell.processing(queue)) == (2, 0)
    async with other.process_message() as message:
        assert message == b"a"
        assert other.current_message().delivery_count == 1


@pytest.mark.promise("A drain has no event of its own; a claim that it recovers emits `claim_reclaim`.")
async def test_a_recovered_claim_emits_claim_reclaim_and_the_drain_emits_nothing(shell: Shell) -> None:
    """Draining has no events of its own."""
    events = shell.events()
    queue = await with_unconfirmed_claim(shell, on_event=events.listen)
    events.clear()
    await queue.drain()
    assert events.names == ["claim_reclaim/success"]


@pytest.mark.promise("`drain(timeout=0)` stops accepting work and returns immediately without a call to Redis.")
async def test_a_timeout_of_zero_returns_immediately(shell: Shell) -> None:
    """It says that a claim is unconfirmed, and does not ask Redis."""
    queue = await with_unconfirmed_claim(shell)
    assert await queue.drain(timeout=0) is False
    assert shell.processing(queue) == 1
    assert (queue.queue.is_draining, queue.queue.is_drained) == (True, False)
    assert await queue.drain() is True
    assert await queue.drain(timeout=0) is True


@pytest.mark.promise(
    "`drain()` returns `True` when nothing is unconfirmed or running, `False` on timeout or without Redis; you can "
    "call it again."
)
async def test_a_drain_that_cannot_reach_redis_says_so_and_can_be_repeated(shell: Shell) -> None:
    """The claim stays unconfirmed until Redis answers."""
    queue = await with_unconfirmed_claim(shell)
    losses = queue.queue._protocol.store.port._client.losses
    losses.request(times=50)
    assert await queue.drain(timeout=0.2) is False
    losses.heal()
    assert await queue.drain(timeout=5) is True
    assert shell.pending(queue) == 1


@pytest.mark.promise("A drain ends a blocked publish, with or without an interrupt handler.")
@pytest.mark.promise("A drain interrupts a publish that waits for room.")
async def test_a_publisher_that_waits_for_room_is_interrupted(shell: Shell) -> None:
    """The drain does not sit out its block timeout, and the publisher is told that nothing was published."""
    queue = shell.queue(
        max_pending_length=1, pending_overload_policy="block", pending_overload_block_timeout_seconds=60
    )
    await queue.publish("a")
    started = time.monotonic()
    publisher = shell.beside(lambda: queue.publish("b"))
    await until(lambda: queue.queue._protocol.gate.others_are_under_way())
    assert await (asyncio.to_thread(queue.queue.drain, 30) if shell.name == "sync" else queue.drain(timeout=30)) is True
    with pytest.raises(QueueBackpressureError):
        await publisher
    assert time.monotonic() - started < 30
    assert shell.pending(queue) == 1


@pytest.mark.promise("A drain waits for a publish that has started and refuses later ones.")
async def test_a_drain_waits_for_a_publish_under_way(shell: Shell) -> None:
    """It returns when the message is in, not before."""
    entered, free = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def key_of_a_slow_thinker(message: str) -> str:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(free.wait(), loop).result(LIMIT_SECONDS)
        return message

    async def awaited_key(message: str) -> str:
        entered.set()
        await free.wait()
        return message

    slow = key_of_a_slow_thinker if shell.name == "sync" else awaited_key
    queue = shell.queue(deduplication=True, get_deduplication_key=slow)
    publisher = shell.beside(lambda: queue.publish("a"))
    await entered.wait()
    draining = shell.beside(lambda: queue.drain(timeout=LIMIT_SECONDS))
    await until(lambda: queue.queue.is_draining)
    await asyncio.sleep(0.05)
    assert not queue.queue.is_drained
    free.set()
    assert await draining is True
    assert await publisher is True
    assert shell.pending(queue) == 1


@pytest.mark.promise("You can call `drain()` from a signal handler, a callback or a message handler.")
async def test_a_drain_from_inside_a_publish_neither_hangs_nor_lies(shell: Shell) -> None:
    """Its own publish is not over yet, so not everything is; the publish goes through, and then it is."""
    answers: list[bool] = []

    async def drain_awaited(event: Any) -> None:
        answers.append(await queue.drain())

    def drain_at_once(event: Any) -> None:
        answers.append(queue.queue.drain())

    queue = shell.queue(on_event=drain_at_once if shell.name == "sync" else drain_awaited)
    assert await queue.publish("a") is True
    assert answers == [False]
    assert await queue.drain() is True


@pytest.mark.promise("A drain neither cancels handlers nor waits for them; they settle their messages as usual.")
async def test_a_drain_from_inside_a_handler_leaves_the_message_to_it(shell: Shell) -> None:
    """It is not unconfirmed: the handler has it, and acknowledges it afterwards."""
    queue = shell.queue()
    await queue.publish("a")
    async with queue.process_message() as message:
        assert message == b"a"
        assert await queue.drain(timeout=5) is True
        assert shell.processing(queue) == 1
    assert shell.processing(queue) == 0


async def test_two_drains_at_once_agree(shell: Shell) -> None:
    """Both wait until Redis has answered about the unconfirmed claim."""
    queue = await with_unconfirmed_claim(shell)
    answers = await asyncio.gather(*(shell.beside(lambda: queue.drain(timeout=10)) for _ in range(2)))
    assert answers == [True, True]
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)


@pytest.mark.promise("The timeout of a drain is in monotonic seconds and is validated.")
async def test_a_timeout_is_a_number_of_seconds(shell: Shell, subtests: pytest.Subtests) -> None:
    """A wrong one shuts nothing."""
    for timeout in [-1, float("nan"), float("inf"), True, "5"]:
        with row(subtests, timeout=timeout):
            shell.redis.flushall()
            queue = shell.queue()
            with pytest.raises(ConfigurationError, match="timeout"):
                await queue.drain(timeout)
            assert not queue.queue.is_draining


@pytest.mark.promise("A drain ends a waiting claim.")
async def test_a_waiting_consumer_leaves_when_its_queue_is_drained(shell: Shell) -> None:
    """Within about a second, and with nothing."""
    queue = shell.queue(wait=60)
    consumer = shell.beside(lambda: take(queue))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(consumer), 0.1)
    await queue.drain()
    assert await asyncio.wait_for(consumer, LIMIT_SECONDS) is None
