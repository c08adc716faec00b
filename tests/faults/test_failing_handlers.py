"""A cancellation during the cleanup of a failed handler waits for it, and stays in the exception's chain."""

import asyncio
import sys

import pytest

from redis_message_queue import CleanupFailedError
from tests.concurrency import until
from tests.faults.proxy import CUT_BEFORE, delayed

pytestmark = pytest.mark.topic("Cancellation")


@pytest.fixture
def shell(async_shell):
    return async_shell


def chain(error):
    """The exception and its contexts, down to the first."""
    links = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__context__
    return links


async def fail(queue):
    async with queue.process_message():
        raise ValueError("the handler's own")


@pytest.mark.promise("A cancellation does not stop the cleanup of a failing handler.")
@pytest.mark.promise(
    "A failing handler's error is raised even if its task is cancelled during the cleanup, however often."
)
@pytest.mark.parametrize("times", [1, 4])
def test_a_task_cancelled_during_the_cleanup_of_a_failure_raises_the_handlers_error(shell, proxy, truth, times):
    """However often it is cancelled; the first cancellation is the end of the chain."""
    proxy.meet("settle", delayed(0.3))

    async def run():
        queue = shell.queue(enable_failed_queue=True)
        await queue.publish("message")
        consumer = asyncio.ensure_future(fail(queue))
        await asyncio.to_thread(until, lambda: proxy.seen["settle"])
        for _ in range(times):
            consumer.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({consumer})
        return consumer

    consumer = shell.runner.run(run())
    assert not consumer.cancelled()
    error = consumer.exception()
    assert isinstance(error, ValueError)
    assert isinstance(chain(error)[-1], asyncio.CancelledError)
    assert truth.failed == [b"message"]
    assert truth.is_empty


@pytest.mark.promise(
    "A deadline that expires during the cleanup raises the handler's error; from Python 3.13 on, a `TimeoutError` is "
    "in its context."
)
def test_a_deadline_during_the_cleanup_of_a_failure_is_in_the_chain(shell, proxy, truth):
    """The block raises the handler's error, not TimeoutError; from Python 3.13 on that is in the chain as well."""
    proxy.meet("settle", delayed(0.5))

    async def run():
        queue = shell.queue(enable_failed_queue=True)
        await queue.publish("message")
        async with asyncio.timeout(0.2):
            await fail(queue)

    with pytest.raises(ValueError, match="own") as failure:
        shell.runner.run(run())
    links = [type(link) for link in chain(failure.value)]
    assert asyncio.CancelledError in links
    assert (TimeoutError in links) == (sys.version_info >= (3, 13))
    assert truth.failed == [b"message"]
    assert truth.is_empty


@pytest.mark.promise("A cancellation during a successful ack takes effect after the ack.")
def test_a_deadline_during_an_ack_that_succeeds_is_a_timeout(shell, proxy, truth):
    """The message is handled and gone, and the caller gets TimeoutError."""
    proxy.meet("settle", delayed(0.5))

    async def run():
        queue = shell.queue()
        await queue.publish("message")
        async with asyncio.timeout(0.2), queue.process_message():
            pass

    with pytest.raises(TimeoutError):
        shell.runner.run(run())
    assert truth.is_empty


@pytest.mark.promise(
    "A deadline that expires during a failing ack raises `CleanupFailedError`; on Python 3.13 a `TimeoutError` is in "
    "its context."
)
def test_a_deadline_during_an_ack_that_fails_is_a_failed_cleanup(shell, proxy, truth):
    """The message stays until its lease ends; from Python 3.13 on the deadline is in the exception's context."""
    proxy.meet("settle", delayed(0.4, CUT_BEFORE), CUT_BEFORE)

    async def run():
        queue = shell.queue(gateway={"retry_budget_seconds": 0, "message_visibility_timeout_seconds": 300})
        await queue.publish("message")
        async with asyncio.timeout(0.2), queue.process_message():
            pass

    with pytest.raises(CleanupFailedError) as failure:
        shell.runner.run(run())
    if sys.version_info >= (3, 13):
        assert any(isinstance(link, TimeoutError) for link in chain(failure.value))
    assert truth.processing == 1
