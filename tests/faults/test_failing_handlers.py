"""A cancellation that meets a failing handler's cleanup waits for it, and stays to be found in the error's chain."""

import asyncio
import sys

import pytest
import redis.asyncio

from redis_message_queue import CleanupFailedError
from tests.faults.meanwhile import until
from tests.faults.proxy import CUT_BEFORE, delayed
from tests.faults.shells import AsyncioShell, OrdinaryAsyncioRedis

pytestmark = pytest.mark.parametrize(
    "client_class", [redis.asyncio.Redis, OrdinaryAsyncioRedis], ids=["packed", "ordinary"]
)


@pytest.fixture
def shell(proxy, client_class):
    opened = AsyncioShell(proxy.port, client_class)
    yield opened
    opened.close()


def chain(error):
    """The error and what it happened in the middle of, down to the first."""
    links = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__context__
    return links


async def fail(queue):
    async with queue.process_message():
        raise ValueError("the handler's own")


@pytest.mark.parametrize("times", [1, 4])
def test_a_task_that_is_cancelled_while_its_failure_is_cleaned_up_ends_with_the_handlers_error(
    shell, proxy, truth, times
):
    """However often it is cancelled; the first cancellation is the last link of the chain."""
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


def test_a_deadline_that_expires_in_the_cleanup_is_found_in_the_chain(shell, proxy, truth):
    """The block raises the handler's error, not TimeoutError; from Python 3.13 on that stands in the chain as well."""
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


def test_a_deadline_that_expires_in_an_ack_that_succeeds_is_a_timeout(shell, proxy, truth):
    """The message is handled and gone, and the caller's deadline is what it is told of."""
    proxy.meet("settle", delayed(0.5))

    async def run():
        queue = shell.queue()
        await queue.publish("message")
        async with asyncio.timeout(0.2), queue.process_message():
            pass

    with pytest.raises(TimeoutError):
        shell.runner.run(run())
    assert truth.is_empty


def test_a_deadline_that_expires_in_an_ack_that_fails_ends_in_the_failed_cleanup(shell, proxy, truth):
    """The message stays for its lease; Python 3.13 and later tell of the deadline in the error's context."""
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
