"""`process_message_callback()` calls a handler with one message, and settles it by how the handler ends."""

import asyncio
from typing import Any

import pytest

from tests.contract.shells import Shell, asyncio_only, take
from tests.tables import row

pytestmark = [pytest.mark.topic("Callbacks as handlers"), pytest.mark.both_shells]


@pytest.mark.promise(
    "`process_message_callback(handler)` claims at most one message, calls the handler with it, and acks when it "
    "returns."
)
@pytest.mark.promise(
    "`process_message_callback()` returns `True` if it handled a message and `False` if there was none."
)
async def test_true_for_a_message_and_false_for_none(shell: Shell) -> None:
    """The handler sees the payload once; an empty poll does not call it."""
    queue = shell.queue(wait=0)
    seen: list[Any] = []
    assert await queue.process_message_callback(seen.append) is False
    await queue.publish("a")
    assert await queue.process_message_callback(seen.append) is True
    assert await queue.process_message_callback(seen.append) is False
    assert seen == [b"a"]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "`process_message_callback(handler)` claims at most one message, calls the handler with it, and acks when it "
    "returns."
)
@pytest.mark.parametrize("returned", [None, False, True, 0, "text", ValueError("returned, not raised")])
async def test_what_a_handler_returns_does_not_matter(shell: Shell, returned: Any) -> None:
    """A normal return acks."""
    queue = shell.queue(enable_completed_queue=True)
    await queue.publish("a")
    assert await queue.process_message_callback(lambda message: returned) is True
    assert shell.listed(queue.key.completed) == [b"a"]


@pytest.mark.promise(
    "`process_message_callback(handler)` claims at most one message, calls the handler with it, and acks when it "
    "returns."
)
async def test_one_message_a_call(shell: Shell) -> None:
    """The rest stays in the line."""
    queue = shell.queue()
    for text in "abc":
        await queue.publish(text)
    seen: list[Any] = []
    await queue.process_message_callback(seen.append)
    assert seen == [b"a"]
    assert shell.pending(queue) == 2


@pytest.mark.promise("An exception in a handler fails the message and reaches the caller.")
async def test_a_handler_that_raises_takes_the_failure_path(shell: Shell) -> None:
    """Its exception reaches the caller as the very object."""
    queue = shell.queue(enable_failed_queue=True)
    await queue.publish("a")
    error = ValueError("mine")

    def handler(message: Any) -> None:
        raise error

    with pytest.raises(ValueError) as raised:
        await queue.process_message_callback(handler)
    assert raised.value is error
    assert shell.listed(queue.key.failed) == [b"a"]


@pytest.mark.promise(
    "A handler that ends with `KeyboardInterrupt`, `SystemExit`, `GeneratorExit` or a cancellation leaves its message "
    "to the lease."
)
@pytest.mark.parametrize("sudden", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
async def test_a_sudden_end_of_a_handler_leaves_the_message(shell: Shell, sudden: type[BaseException]) -> None:
    """As in a block: nothing is acked and nothing failed."""
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True)
    await queue.publish("a")

    def handler(message: Any) -> None:
        raise sudden

    with pytest.raises(sudden):
        await queue.process_message_callback(handler)
    assert shell.leftovers(queue) == {b"q::processing", b"q::leases"}


async def test_a_handlers_stop_async_iteration_reaches_the_caller(shell: Shell) -> None:
    """It means nothing to a queue."""
    queue = shell.queue(enable_failed_queue=True)
    await queue.publish("a")
    error = StopAsyncIteration("mine")

    def handler(message: Any) -> None:
        raise error

    with pytest.raises(StopAsyncIteration) as raised:
        await queue.process_message_callback(handler)
    assert raised.value is error
    assert shell.listed(queue.key.failed) == [b"a"]


async def test_a_handlers_stop_iteration_is_not_mistaken_for_a_return(shell: Shell) -> None:
    """From the sync queue it comes out as itself; a coroutine of Python cannot raise it, and wraps it."""
    events = shell.events()
    queue = shell.queue(enable_failed_queue=True, on_event=events.listen)
    await queue.publish("a")

    def handler(message: Any) -> None:
        next(iter(()))

    if shell.name == "sync":
        with pytest.raises(StopIteration):
            queue.queue.process_message_callback(handler)
    else:
        with pytest.raises(RuntimeError) as wrapped:
            await queue.process_message_callback(handler)
        assert isinstance(wrapped.value.__cause__, StopIteration)
    assert shell.listed(queue.key.failed) == [b"a"]
    assert events.the("failed").exception_type == "StopIteration"


async def test_a_handler_can_call_current_message(shell: Shell) -> None:
    """current_message() works in a callback, too."""
    queue = shell.queue()
    await queue.publish("a")
    seen: list[Any] = []
    await queue.process_message_callback(lambda message: seen.append(queue.current_message()))
    assert seen[0].payload == b"a"
    assert queue.current_message() is None


@pytest.mark.promise("A handler that is not callable is refused before a message is claimed.")
async def test_what_cannot_be_called_is_refused_before_a_message_is_claimed(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """A TypeError that names the parameter."""
    for handler in [None, "handler", 7, object()]:
        with row(subtests, handler=handler):
            shell.redis.flushall()
            queue = shell.queue()
            await queue.publish("a")
            with pytest.raises(TypeError, match=r"^handler ") as refusal:
                await queue.process_message_callback(handler)
            assert isinstance(refusal.value, shell.module.ConfigurationError)
            assert (shell.pending(queue), shell.processing(queue)) == (1, 0)


# Async handlers


class Finished:
    """Awaitable without being a coroutine; remembers whether anybody waited for it."""

    def __init__(self, done: list[Any]) -> None:
        self._done = done

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        self._done.append("done")


def coroutine_function(done: list[Any]) -> Any:
    async def handler(message: Any) -> None:
        await asyncio.sleep(0)
        done.append("done")

    return handler


def function_of_an_awaitable(done: list[Any]) -> Any:
    return lambda message: Finished(done)


def callable_object(done: list[Any]) -> Any:
    class Handler:
        async def __call__(self, message: Any) -> None:
            await asyncio.sleep(0)
            done.append("done")

    return Handler()


@pytest.mark.promise(
    "In the sync queue, a handler that returns an awaitable raises `TypeError`, and its message returns when the "
    "lease ends."
)
@pytest.mark.promise("The async queue accepts plain and `async def` handlers and awaits them before it acks.")
@pytest.mark.parametrize("kind", [coroutine_function, function_of_an_awaitable, callable_object])
async def test_an_async_handler_is_awaited_or_refused_but_never_dropped(shell: Shell, kind: Any) -> None:
    """The asyncio queue awaits it before it acks. The sync queue raises TypeError and leaves the message in
    processing, where its lease brings it back: nothing has run that could count as done."""
    events, done = shell.events(), []
    handler = kind(done)
    queue = shell.queue(wait=0, enable_completed_queue=True, enable_failed_queue=True, on_event=events.listen)
    await queue.publish("a")
    if shell.name == "asyncio":
        assert await queue.process_message_callback(handler) is True
        assert done == ["done"]
        assert shell.listed(queue.key.completed) == [b"a"]
        return
    with pytest.raises(TypeError, match="asyncio"):
        await queue.process_message_callback(handler)
    assert done == []
    assert shell.leftovers(queue) == {b"q::processing", b"q::leases"}
    assert events.names == ["publish/success", "claim/success"]
    shell.lapse(queue)
    assert await take(queue) == b"a"


@pytest.mark.promise("The async queue accepts plain and `async def` handlers and awaits them before it acks.")
@asyncio_only
async def test_an_async_handler_is_finished_before_its_message_is_acked(shell: Shell) -> None:
    """While it waits for something, the message is in processing."""
    queue = shell.queue()
    await queue.publish("a")
    seen: list[int] = []

    async def handler(message: Any) -> None:
        await asyncio.sleep(0.02)
        seen.append(shell.processing(queue))

    await queue.process_message_callback(handler)
    assert seen == [1]
    assert shell.processing(queue) == 0


@pytest.mark.promise("An exception in a handler fails the message and reaches the caller.")
@asyncio_only
async def test_what_an_async_handler_raises_takes_the_failure_path(shell: Shell) -> None:
    """After its first await as well as before."""
    queue = shell.queue(enable_failed_queue=True)
    await queue.publish("a")

    async def handler(message: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await queue.process_message_callback(handler)
    assert shell.listed(queue.key.failed) == [b"a"]
