"""A task that is cancelled while its message is being settled: the message is settled, the cancellation is not lost."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from redis_message_queue import CleanupFailedError, QueueEvent
from tests.contract.shells import LIMIT_SECONDS, Shell, Wiring, asyncio_only, claim_and_die, take, until

pytestmark = [pytest.mark.topic("Cancellation"), asyncio_only]


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it happened in the middle of, down to the first."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__context__


class Stop:
    """Holds a task up in its callback for one event, until somebody cancels it there."""

    def __init__(self, operation: str) -> None:
        self.reached = asyncio.Event()
        self.told: list[str] = []
        self._operation = operation

    async def listen(self, event: QueueEvent) -> None:
        self.told.append(str(event.operation))
        if event.operation == self._operation:
            self.reached.set()
            await asyncio.sleep(5 * LIMIT_SECONDS)


async def cancel_at(stop: Stop, work: Any) -> "asyncio.Task[Any]":
    """Run it until it is held up, cancel it there, and wait for its end."""
    task = asyncio.ensure_future(work)
    await asyncio.wait_for(stop.reached.wait(), LIMIT_SECONDS)
    task.cancel()
    await asyncio.wait({task}, timeout=LIMIT_SECONDS)
    assert task.done()
    return task


async def fail(queue: Any, error: Exception) -> None:
    async with queue.process_message():
        raise error


@pytest.mark.promise("A cancellation does not stop the cleanup of a failing handler.")
@pytest.mark.parametrize("operation", ["failed", "nack"])
async def test_a_cancellation_in_an_event_of_a_failure_is_in_the_chain(shell: Shell, operation: str) -> None:
    """The callback is cut short, the cleanup is not: the task ends with the handler's own error."""
    stop, error = Stop(operation), ValueError("mine")
    queue = shell.queue(enable_failed_queue=True, on_event=stop.listen)
    await queue.publish("a")
    task = await cancel_at(stop, fail(queue, error))
    assert not task.cancelled()
    assert task.exception() is error
    assert isinstance(list(chain(error))[-1], asyncio.CancelledError)
    assert shell.leftovers(queue) == {b"q::failed"}
    assert stop.told == ["publish", "claim", "failed", "nack"]


@pytest.mark.promise("A cancellation during a successful ack takes effect after the ack.")
@pytest.mark.parametrize("operation", ["ack", "completed"])
async def test_a_cancellation_in_an_event_of_a_success_ends_the_task_when_all_is_done(
    shell: Shell, operation: str
) -> None:
    """The message is acknowledged and told of; then the task is cancelled as it was asked to be."""
    stop = Stop(operation)
    queue = shell.queue(enable_completed_queue=True, on_event=stop.listen)
    await queue.publish("a")
    task = await cancel_at(stop, take(queue))
    assert task.cancelled()
    assert shell.leftovers(queue) == {b"q::completed"}
    assert stop.told == ["publish", "claim", "ack", "completed"]


@pytest.mark.promise("The first suppressed cancellation is at the end of the error's `__context__` chain.")
async def test_a_cancellation_before_the_handler_raises_does_not_take_its_place(shell: Shell) -> None:
    """It was on its way when the handler raised, and meets the cleanup."""
    queue = shell.queue(enable_failed_queue=True)
    await queue.publish("a")
    error = ValueError("mine")

    async def consumer() -> None:
        async with queue.process_message():
            asyncio.current_task().cancel()
            raise error

    task = asyncio.ensure_future(consumer())
    await asyncio.wait({task}, timeout=LIMIT_SECONDS)
    assert task.exception() is error
    assert isinstance(list(chain(error))[-1], asyncio.CancelledError)
    assert shell.leftovers(queue) == {b"q::failed"}


async def publish(queue: Any) -> None:
    asyncio.current_task().cancel()
    await queue.publish("b")


async def claim(queue: Any) -> None:
    asyncio.current_task().cancel()
    await queue.process_message().__aenter__()


async def ack(queue: Any) -> None:
    async with queue.process_message():
        asyncio.current_task().cancel()


async def drain_a_lost_claim(queue: Any) -> None:
    lost = asyncio.ensure_future(claim(queue))
    await asyncio.wait({lost})
    asyncio.current_task().cancel()
    await queue.drain()


@pytest.mark.promise("A call to Redis never swallows a cancellation.")
@pytest.mark.parametrize("wiring", [Wiring(), Wiring(subclassed=True)], ids=str)
@pytest.mark.parametrize("socket_timeout", [None, 5])
@pytest.mark.parametrize("work", [publish, claim, ack, drain_a_lost_claim])
async def test_a_cancellation_is_not_swallowed_on_the_way_to_redis(
    shell: Shell, work: Any, socket_timeout: float | None
) -> None:
    """Whatever the client does with its own time limits, a task that was told to end does not go on."""
    queue = shell.queue(client=shell.new_client(socket_timeout=socket_timeout), wait=0)
    await queue.publish("a")
    task = asyncio.ensure_future(work(queue))
    await asyncio.wait({task}, timeout=LIMIT_SECONDS)
    assert task.cancelled()
    assert await queue.drain(timeout=LIMIT_SECONDS) is True
    assert shell.processing(queue) == 0


@pytest.mark.promise("A call to Redis never swallows a cancellation.")
@pytest.mark.parametrize("work", [publish, claim, ack, drain_a_lost_claim])
async def test_a_cancellation_is_not_swallowed_by_a_pool_that_looks_for_unread_bytes(shell: Shell, work: Any) -> None:
    """redis-py 6 and 7 do so with hiredis, in a timeout of no time that takes a pending cancellation for its own."""
    client = shell.new_client()
    give_out = client.connection_pool.get_connection

    async def look_first(*arguments: Any) -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(LIMIT_SECONDS)
        return await give_out(*arguments)

    client.connection_pool.get_connection = look_first
    queue = shell.queue(client=client, wait=0)
    await queue.publish("a")
    task = asyncio.ensure_future(work(queue))
    await asyncio.wait({task}, timeout=LIMIT_SECONDS)
    assert task.cancelled()
    assert await queue.drain(timeout=LIMIT_SECONDS) is True
    assert shell.processing(queue) == 0


@pytest.mark.promise("The first suppressed cancellation is at the end of the error's `__context__` chain.")
async def test_a_failures_own_chain_is_kept_and_the_cancellation_comes_last(shell: Shell) -> None:
    """What the handler's error was raised from stays where it was."""
    stop = Stop("failed")
    queue = shell.queue(on_event=stop.listen)
    await queue.publish("a")

    async def consumer() -> None:
        async with queue.process_message():
            try:
                raise KeyError("first")
            except KeyError as first:
                raise ValueError("second") from first

    task = await cancel_at(stop, consumer())
    error = task.exception()
    assert [type(link) for link in chain(error)] == [ValueError, KeyError, asyncio.CancelledError]
    assert isinstance(error.__cause__, KeyError)


@pytest.mark.promise("Callback handlers follow the same rules under cancellation.")
async def test_a_failing_callback_handler_keeps_the_same_rule(shell: Shell) -> None:
    """process_message_callback is a block like any other."""
    stop, error = Stop("failed"), ValueError("mine")
    queue = shell.queue(enable_failed_queue=True, on_event=stop.listen)
    await queue.publish("a")

    async def handler(message: Any) -> None:
        raise error

    task = await cancel_at(stop, queue.process_message_callback(handler))
    assert task.exception() is error
    assert isinstance(list(chain(error))[-1], asyncio.CancelledError)
    assert shell.listed(queue.key.failed) == [b"a"]


@pytest.mark.promise("A heartbeat stops even if its consumer is cancelled while stopping it.")
async def test_a_cancellation_while_the_heartbeat_is_stopped_changes_nothing(shell: Shell) -> None:
    """Neither for a failure nor for a success: the message is settled, and the heartbeat ends."""
    stop = Stop("lease_renew")
    queue = shell.queue(
        enable_failed_queue=True,
        on_event=stop.listen,
        visibility_timeout_seconds=60,
        heartbeat_interval_seconds=0.02,
    )
    await queue.publish("a")
    error = ValueError("mine")

    async def consumer() -> None:
        async with queue.process_message():
            await stop.reached.wait()  # the heartbeat hangs in its callback now, and has to be waited for
            raise error

    tasks = len(asyncio.all_tasks())
    task = asyncio.ensure_future(consumer())
    await asyncio.wait_for(stop.reached.wait(), LIMIT_SECONDS)
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task}, timeout=LIMIT_SECONDS)
    assert task.exception() is error
    assert isinstance(list(chain(error))[-1], asyncio.CancelledError)
    assert shell.listed(queue.key.failed) == [b"a"]
    assert await until(lambda: len(asyncio.all_tasks()) == tasks)


@pytest.mark.promise("A deadline that expires inside the block is an ordinary exception of the handler.")
async def test_a_deadline_inside_the_block_is_the_handlers_error(shell: Shell) -> None:
    """asyncio.timeout around a step of the handler raises TimeoutError, an ordinary exception: the failure path."""
    queue = shell.queue(enable_failed_queue=True)
    await queue.publish("a")
    with pytest.raises(TimeoutError):
        async with queue.process_message():
            async with asyncio.timeout(0.01):
                await asyncio.sleep(LIMIT_SECONDS)
    assert shell.listed(queue.key.failed) == [b"a"]


@pytest.mark.promise("A cancelled task ends as cancelled, and its message stays in `processing` until the lease ends.")
async def test_a_deadline_around_the_block_that_expires_in_the_handler_leaves_the_message(shell: Shell) -> None:
    """There it is a cancellation: hands off, and the lease brings the message back."""
    queue = shell.queue(wait=0, enable_failed_queue=True)
    await queue.publish("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), queue.process_message():
            await asyncio.sleep(LIMIT_SECONDS)
    assert shell.leftovers(queue) == {b"q::processing", b"q::leases"}
    shell.lapse(queue)
    assert await take(queue) == b"a"


@pytest.mark.promise("Without a lease, the message of a cancelled handler stays in `processing`.")
async def test_a_cancelled_handler_without_a_lease_leaves_its_message_in_processing_for_good(shell: Shell) -> None:
    """Nothing brings it back, and nothing stands beside it."""
    queue = shell.queue(wait=0, visibility_timeout_seconds=None, max_delivery_count=None)
    await queue.publish("a")
    entered = asyncio.Event()

    async def handler(message: Any) -> None:
        entered.set()
        await asyncio.sleep(LIMIT_SECONDS)

    task = asyncio.ensure_future(queue.process_message_callback(handler))
    await asyncio.wait_for(entered.wait(), LIMIT_SECONDS)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert await take(queue) is None
    assert await queue.drain() is True
    assert shell.leftovers(queue) == {b"q::processing"}


@pytest.mark.promise("A cancelled task ends as cancelled, and its message stays in `processing` until the lease ends.")
async def test_a_cancelled_consumer_requeues_nothing(shell: Shell) -> None:
    """Only a drain does that, and only for what no handler saw: this message waits for its lease."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    await claim_and_die(queue)
    assert await queue.drain() is True
    assert (shell.pending(queue), shell.processing(queue)) == (0, 1)


@pytest.mark.promise(
    "A deadline that expires during a failing ack raises `CleanupFailedError`; on Python 3.13 a `TimeoutError` is in "
    "its context."
)
async def test_a_deadline_in_the_events_of_a_failed_ack_is_in_the_context(shell: Shell) -> None:
    """CleanupFailedError is what is raised; Python 3.13 and later show the TimeoutError in its chain."""
    stop = Stop("cleanup_failed")
    queue = shell.queue(enable_completed_queue=True, on_event=stop.listen)
    await queue.publish("a")
    shell.redis.set(queue.key.completed, "not a list")
    with pytest.raises(CleanupFailedError) as failure:
        async with asyncio.timeout(0.2), queue.process_message():
            pass
    kinds = [type(link) for link in chain(failure.value)]
    assert (TimeoutError in kinds) == (sys.version_info >= (3, 13))
    assert shell.processing(queue) == 1
