"""Drains, interrupts and cancellations work with a custom gateway."""

import asyncio
import sys
import threading
from typing import Any

import pytest

from redis_message_queue import (
    CleanupFailedError,
    EventDrivenInterruptHandler,
    QueueDrainedError,
)
from tests.contract.custom_gateways import LONG, Core, Door, custom
from tests.contract.shells import (
    LIMIT_SECONDS,
    Shell,
    asyncio_only,
    take,
    until,
)

pytestmark = [pytest.mark.topic("Gateways"), pytest.mark.both_shells]


# Drains and interrupts


@pytest.mark.promise(
    "Payload checks, deduplication functions, drains and interrupts apply before a custom gateway is called."
)
async def test_a_drained_queue_does_not_call_its_gateway(shell: Shell) -> None:
    """There is nothing to requeue; publishes are refused and no claim is made. The gateway serves others on."""
    core, events = Core("m"), shell.events()
    gateway = custom(shell, core)
    queue = shell.queue(gateway=gateway, on_event=events.listen)
    assert await queue.drain() is True
    with pytest.raises(QueueDrainedError):
        await queue.publish("a")
    assert await take(queue) is None
    assert core.calls == []
    assert events.names == []
    assert await take(shell.queue(gateway=gateway)) == "m"


@pytest.mark.promise("A drain waits for the running operation of a custom gateway and leaves handlers their messages.")
async def test_a_drain_waits_for_a_publish_that_the_gateway_is_at(shell: Shell) -> None:
    """False while it is under way, True when it is in the line."""
    door = Door(shell, answer=None)
    core = Core(add_message=door)
    queue = shell.queue(gateway=custom(shell, core))
    publishing = shell.beside(lambda: queue.publish("a"))
    assert await until(door.reached.is_set)
    assert await queue.drain(timeout=0) is False
    draining = asyncio.ensure_future(shell.beside(lambda: queue.drain(timeout=LIMIT_SECONDS)))
    await asyncio.wait({draining}, timeout=0.1)
    assert not draining.done()
    door.open()
    assert await publishing is True
    assert await draining is True


@pytest.mark.promise("A drain waits for the running operation of a custom gateway and leaves handlers their messages.")
async def test_a_drain_leaves_a_handler_its_message(shell: Shell) -> None:
    """It is acknowledged through the gateway as ever."""
    core = Core("m")
    queue = shell.queue(gateway=custom(shell, core))
    async with queue.process_message():
        assert await queue.drain(timeout=LIMIT_SECONDS) is True
    assert core.names == ["wait_for_message_and_move", "remove_message"]


@pytest.mark.promise(
    "Payload checks, deduplication functions, drains and interrupts apply before a custom gateway is called."
)
async def test_an_interrupted_consumer_does_not_call_its_gateway(shell: Shell) -> None:
    """The stop signal is looked at before the gateway is."""
    core, stop = Core("m"), threading.Event()
    queue = shell.queue(gateway=custom(shell, core), interrupt=EventDrivenInterruptHandler(stop))
    stop.set()
    assert await take(queue) is None
    assert core.calls == []


def chain(error: BaseException | None) -> list[BaseException]:
    """The error and what it happened in the middle of, down to the first."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__context__
    return links


async def cancelled_at(door: Door, work: Any, times: int = 1) -> asyncio.Task[Any]:
    """The task of the work, cancelled while the operation is under way, and then left to end."""
    task = asyncio.ensure_future(work)
    assert await until(door.reached.is_set)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done(), "the operation was not waited for"
    door.open()
    await asyncio.wait({task})
    return task


# Cancellation


@pytest.mark.promise("A cancellation does not stop an ack or nack through a custom gateway.")
@asyncio_only
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("operation", ["remove_message", "move_message", "trim_queue"])
async def test_an_ack_is_finished_before_a_cancellation_goes_on(shell: Shell, operation: str, times: int) -> None:
    """However often it comes: the gateway is not cut short, the events are told, the task ends cancelled."""
    door, events = Door(shell), shell.events()
    core = Core("m", **{operation: door})
    keeps = operation != "remove_message"
    queue = shell.queue(gateway=custom(shell, core), on_event=events.listen, enable_completed_queue=keeps)
    task = await cancelled_at(door, take(queue), times)
    assert task.cancelled()
    assert core.names[1:] == (["move_message", "trim_queue"] if keeps else ["remove_message"])
    assert events.names == ["claim/success", "ack/success", *(["completed/success"] if keeps else [])]


@pytest.mark.promise("A cancellation does not stop an ack or nack through a custom gateway.")
@asyncio_only
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("operation", ["remove_message", "move_message", "trim_queue"])
async def test_a_failing_handlers_error_outlasts_a_cancellation(shell: Shell, operation: str, times: int) -> None:
    """The message has left as it should, and the first cancellation is the last link of the error's chain."""
    door, events = Door(shell), shell.events()
    core = Core("m", **{operation: door})
    keeps = operation != "remove_message"
    queue = shell.queue(gateway=custom(shell, core), on_event=events.listen, enable_failed_queue=keeps)

    async def break_down_cancelled() -> None:
        async with queue.process_message():
            raise ValueError("the handler's own")

    task = await cancelled_at(door, break_down_cancelled(), times)
    assert not task.cancelled()
    assert isinstance(task.exception(), ValueError)
    assert isinstance(chain(task.exception())[-1], asyncio.CancelledError)
    assert core.names[1:] == (["move_message", "trim_queue"] if keeps else ["remove_message"])
    assert events.names == ["claim/success", "failed/failure", "nack/success"]


@pytest.mark.promise("A cancellation does not stop an ack or nack through a custom gateway.")
@asyncio_only
async def test_a_cancelled_ack_that_fails_is_a_failed_cleanup(shell: Shell) -> None:
    """What went wrong with the message is told first; the cancellation stays to be found in the chain."""
    error = LookupError("mine")
    door = Door(shell, answer=error)
    queue = shell.queue(gateway=custom(shell, Core("m", remove_message=door)))
    task = await cancelled_at(door, take(queue))
    assert isinstance(task.exception(), CleanupFailedError)
    assert task.exception().__cause__ is error
    assert any(isinstance(link, asyncio.CancelledError) for link in chain(task.exception()))


@pytest.mark.promise("A cancellation does not stop an ack or nack through a custom gateway.")
@asyncio_only
async def test_a_deadline_that_expires_in_the_cleanup_is_found_in_the_chain(shell: Shell) -> None:
    """The block raises the handler's error, not TimeoutError; from Python 3.13 on that stands in the chain as well."""
    door = Door(shell)
    core = Core("m", move_message=door)
    queue = shell.queue(gateway=custom(shell, core), enable_failed_queue=True)

    async def break_down_cancelled() -> None:
        async with asyncio.timeout(None) as deadline, queue.process_message():
            passed.append(deadline)
            raise ValueError("the handler's own")

    passed: list[asyncio.Timeout] = []
    task = asyncio.ensure_future(break_down_cancelled())
    assert await until(door.reached.is_set)
    passed[0].reschedule(asyncio.get_running_loop().time())
    assert await until(passed[0].expired)
    await asyncio.sleep(0.01)
    door.open()
    await asyncio.wait({task})
    links = [type(link) for link in chain(task.exception())]
    assert links[0] is ValueError
    assert asyncio.CancelledError in links
    assert (TimeoutError in links) == (sys.version_info >= (3, 13))
    assert core.names[1:] == ["move_message", "trim_queue"]


@pytest.mark.promise("A cancellation does not stop an ack or nack through a custom gateway.")
@asyncio_only
async def test_a_cancelled_claim_is_the_gateways_to_clean_up(shell: Shell) -> None:
    """It sees the cancellation itself, at the await where it is, and knows best what it has taken."""
    seen: list[str] = []

    async def wait(*keys: Any) -> None:
        seen.append("waits")
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    core = Core(wait_for_message_and_move=wait)
    queue = shell.queue(gateway=custom(shell, core))
    task = asyncio.ensure_future(take(queue))
    assert await until(lambda: seen)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert seen == ["waits", "cancelled"]
    assert core.names == ["wait_for_message_and_move"]
    core.answers.clear()
    core.line.append("m")
    assert await take(queue) == "m"
