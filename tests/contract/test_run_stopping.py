"""`run()` ends gracefully when it is interrupted, drained or cancelled."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from redis_message_queue import EventDrivenInterruptHandler
from tests.contract.loops import LONG, Crossing, ended, filled, look, running, side_by_side, summary_of, text, words
from tests.contract.shells import (
    BEATING,
    LIMIT_SECONDS,
    Shell,
    asyncio_only,
    until,
)

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]


def drains(queue: Any, stop: threading.Event) -> Callable[[], Any]:
    return queue.drain


def interrupts(queue: Any, stop: threading.Event) -> Callable[[], Any]:
    async def interrupt() -> None:
        stop.set()

    return interrupt


@pytest.mark.promise(
    "An interrupt or a drain ends `run()` gracefully: handlers that have started finish and their messages are acked."
)
@pytest.mark.promise(
    "When `run()` stops, prefetched messages return to the front of their tenant queue in order and uncounted."
)
@pytest.mark.parametrize("way", [drains, interrupts])
@side_by_side
async def test_a_stopped_loop_finishes_what_it_started_and_requeues_the_rest(
    shell: Shell, way: Any, concurrency: int
) -> None:
    """What was begun is acked, the rest is at the front in its order, as if it had never been claimed."""
    stop, events = threading.Event(), shell.events()
    queue = await filled(
        shell, words(20), interrupt=EventDrivenInterruptHandler(stop), on_event=events.listen, **BEATING
    )
    crossing = Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=concurrency, prefetch=10) as loop:
        await crossing.is_entered_by(concurrency)
        await way(queue, stop)()
        assert not loop.done()
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (concurrency, 0, 10 - concurrency)
    assert sorted(crossing.done) == words(concurrency)
    assert len(events.of("ack")) == concurrency
    assert len(events.of("requeued")) == 10 - concurrency
    assert shell.processing(queue) == 0
    assert await look(shell) == [(word, 1) for word in words(20)[concurrency:]]


@pytest.mark.promise(
    "When `run()` stops, prefetched messages return to the front of their tenant queue in order and uncounted."
)
async def test_requeued_messages_keep_their_order_in_every_tenant_queue(shell: Shell) -> None:
    """Each tenant's messages go to the front of its own line."""
    queue, crossing = shell.queue(), Crossing(shell)
    for tenant in ("a", "b", None):
        await queue.publish_many([f"{tenant} {word}" for word in words(4)], tenant=tenant)
    async with running(shell, queue, crossing.handler, prefetch=8) as loop:
        await crossing.is_entered_by(1)
        await queue.drain()
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (1, 0, 7)
    left = await look(shell)
    for tenant in ("a", "b", None):
        expected = [f"{tenant} {word}" for word in words(4)]
        assert [word for word, count in left if word.startswith(f"{tenant} ")] == [
            word for word in expected if word not in crossing.done
        ]
    assert {count for _, count in left} == {1}


@pytest.mark.promise(
    "A stopped `run()` ends promptly when it is idle, and immediately if the queue was stopped before."
)
async def test_a_stopped_loop_ends_soon_where_nothing_waits(shell: Shell) -> None:
    """An idle worker is not held up by its wait."""
    stop = threading.Event()
    queue = shell.queue(wait=LONG, interrupt=EventDrivenInterruptHandler(stop))
    async with running(shell, queue, lambda message: None, concurrency=3) as loop:
        assert await until(lambda: int(shell.redis.info("clients")["blocked_clients"]) == 1)
        stop.set()
        assert summary_of(await ended(loop)) == (0, 0, 0)


@pytest.mark.promise("A handler can stop its own `run()`, and you can run a queue again.")
async def test_a_handler_may_stop_its_own_loop(shell: Shell) -> None:
    """By draining the queue: its message is acked, the rest goes back."""
    queue = await filled(shell)

    async def handle(message: Any) -> None:
        await queue.drain(timeout=0)

    assert summary_of(await queue.run(shell.handler(handle), prefetch=4)) == (1, 0, 3)
    assert await look(shell) == [("b", 1), ("c", 1), ("d", 1)]


@pytest.mark.promise(
    "A stopped `run()` ends promptly when it is idle, and immediately if the queue was stopped before."
)
async def test_a_loop_of_a_stopped_queue_ends_at_once(shell: Shell) -> None:
    """Drained or interrupted: nothing is claimed, and the summary is empty."""
    stop = threading.Event()
    drained, interrupted = await filled(shell, "a"), shell.queue(interrupt=EventDrivenInterruptHandler(stop))
    await drained.drain()
    stop.set()
    for queue in (drained, interrupted):
        async with running(shell, queue, lambda message: None, concurrency=2) as loop:
            assert summary_of(await ended(loop)) == (0, 0, 0)
    assert shell.pending(drained) == 1


@pytest.mark.promise("A handler can stop its own `run()`, and you can run a queue again.")
async def test_a_second_loop_goes_on_where_the_first_one_ended(shell: Shell) -> None:
    """A queue object can be run as often as one likes."""
    queue = shell.queue()
    for round_ in range(3):
        await queue.publish_many(words(5))
        assert summary_of(await queue.run(lambda message: None, prefetch=2, until_empty=True)) == (5, 0, 0), round_


@pytest.mark.promise("A cancelled `run()` acks what is handled, requeues prefetched messages, and ends as cancelled.")
@asyncio_only
@side_by_side
async def test_a_cancelled_loop_acks_what_is_done_and_requeues_what_was_not_started(
    shell: Shell, concurrency: int
) -> None:
    """The handlers at work are cancelled, and their messages are left to their leases."""
    queue, crossing = await filled(shell, words(20)), Crossing(shell)

    async def handle(message: Any) -> None:
        if len(crossing.done) < 2:
            crossing.done.append(text(message))
        else:
            await crossing.handler(message)

    loop = asyncio.ensure_future(queue.run(handle, concurrency=concurrency, prefetch=10))
    await crossing.is_entered_by(concurrency)
    loop.cancel()
    await asyncio.wait({loop}, timeout=LIMIT_SECONDS)
    assert loop.cancelled()
    assert shell.processing(queue) == concurrency
    assert await look(shell) == [(word, 1) for word in words(20)[2 + concurrency :]]


@pytest.mark.promise("A cancelled `run()` acks what is handled, requeues prefetched messages, and ends as cancelled.")
@asyncio_only
@pytest.mark.parametrize("moment", ["ack", "failed", "nack", "requeued"])
async def test_a_cancellation_is_not_swallowed(shell: Shell, moment: str) -> None:
    """It lands while the loop settles or tells of a message: that is finished, and then the loop ends as cancelled."""
    told: list[str] = []

    async def listen(event: Any) -> None:
        told.append(str(event.operation))
        if event.operation == moment and told.count(moment) == 1:
            loop.cancel()
            await asyncio.sleep(0)

    queue = await filled(shell, "abc", on_event=listen)

    def handle(message: Any) -> None:
        if moment != "ack":
            raise ValueError

    options: dict[str, Any] = {"batch_size": 1} if moment == "requeued" else {}
    loop = asyncio.ensure_future(queue.run(handle, **options))
    await asyncio.wait({loop}, timeout=LIMIT_SECONDS)
    done = loop.done()
    await queue.drain(timeout=0)
    assert done, f"the loop goes on: {told}"
    assert loop.cancelled()


@pytest.mark.promise(
    "A handler that raises something other than an `Exception` ends `run()` with it, even while other workers are idle."
)
@asyncio_only
@side_by_side
async def test_a_handler_that_was_cancelled_from_inside_ends_the_loop(shell: Shell, concurrency: int) -> None:
    """Something that it awaited was cancelled: no `Exception`, so its message is left alone and the loop ends."""
    queue = await filled(shell, "ab", wait=LONG)

    async def handle(message: Any) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(LONG))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    async with running(shell, queue, handle, concurrency=concurrency) as loop:
        with pytest.raises(asyncio.CancelledError):
            await ended(loop)
