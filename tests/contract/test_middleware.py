"""Middleware around a handler, and several listeners of events."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from redis_message_queue import ConfigurationTypeError, Discard
from tests.contract.shells import Shell, sync_only, take
from tests.tables import row

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]


class Trail:
    """Middleware that note when they are entered and left, as this shell documents them."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.steps: list[Any] = []

    def middleware(self, name: str) -> Any:
        def noted(message: Any, call_next: Any) -> Any:
            self.steps.append(f"{name} in")
            try:
                return call_next(message)
            finally:
                self.steps.append(f"{name} out")

        async def awaited(message: Any, call_next: Any) -> Any:
            self.steps.append(f"{name} in")
            try:
                return await call_next(message)
            finally:
                self.steps.append(f"{name} out")

        return noted if self.shell.name == "sync" else awaited

    def handle(self, message: Any) -> None:
        batch = message if isinstance(message, list) else [message]
        self.steps.append("+".join(str(one.json()) for one in batch))


@pytest.mark.promise("Middleware of `run()` wraps each call of the handler, the first of them outermost.")
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_middleware_wraps_the_handler(shell: Shell, concurrency: int) -> None:
    queue, trail = shell.queue(), Trail(shell)
    await queue.publish("1")
    middleware = [trail.middleware("outer"), trail.middleware("inner")]
    summary = await queue.run(
        shell.callback(trail.handle), middleware=middleware, until_empty=True, concurrency=concurrency
    )
    assert trail.steps == ["outer in", "inner in", "1", "inner out", "outer out"]
    assert summary.handled == 1


async def test_middleware_wraps_a_call_with_a_batch(shell: Shell) -> None:
    queue, trail = shell.queue(), Trail(shell)
    await queue.publish_many(["1", "2"])
    await queue.run(
        shell.callback(trail.handle), middleware=[trail.middleware("outer")], until_empty=True, batch_size=5
    )
    assert trail.steps == ["outer in", "1+2", "outer out"]


async def test_middleware_serves_several_queues(shell: Shell) -> None:
    queues, trail = [shell.queue(name) for name in ("a", "b")], Trail(shell)
    for number, queue in enumerate(queues):
        await queue.publish(str(number))
    work = {queue.queue: 1 for queue in queues}
    options = {"middleware": [trail.middleware("m")], "until_empty": True}
    if shell.name == "sync":
        await asyncio.to_thread(shell.module.run_queues, work, trail.handle, **options)
    else:
        await shell.module.run_queues(work, shell.callback(trail.handle), **options)
    assert sorted(trail.steps) == sorted(["m in", "0", "m out", "m in", "1", "m out"])


@pytest.mark.promise("What a middleware raises counts as raised by the handler.")
async def test_an_error_of_the_handler_passes_through(shell: Shell) -> None:
    queue, trail = shell.queue(), Trail(shell)
    await queue.publish_many(["1", "2", "3"])

    def fail(message: Any) -> None:
        trail.handle(message)
        raise Discard("enough") if message.json() == 2 else ValueError("no such customer")

    summary = await queue.run(shell.callback(fail), middleware=[trail.middleware("m")], until_empty=True)
    assert trail.steps == ["m in", "1", "m out", "m in", "2", "m out", "m in", "3", "m out"]
    assert (summary.dead_lettered, summary.discarded) == (2, 1)


async def test_an_error_of_a_middleware_fails_the_message(shell: Shell) -> None:
    queue, trail = shell.queue(), Trail(shell)
    await queue.publish("1")

    def refuse(message: Any, call_next: Any) -> None:
        raise ValueError("not today")

    summary = await queue.run(shell.callback(trail.handle), middleware=[shell.callback(refuse)], until_empty=True)
    (record,) = await queue.records()
    assert (summary.dead_lettered, record.error, trail.steps) == (1, "not today", [])


async def test_a_middleware_may_answer_itself_or_change_what_the_handler_gets(shell: Shell) -> None:
    queue, trail = shell.queue(), Trail(shell)
    await queue.publish_many(["1", "2"])

    def choose(message: Any, call_next: Any) -> Any:
        return None if message.json() == 1 else call_next([message, message])

    middleware = shell.callback(choose)
    if shell.name == "asyncio":

        async def middleware(message: Any, call_next: Any) -> Any:
            found = choose(message, call_next)
            return await found if inspect.isawaitable(found) else found

    summary = await queue.run(shell.callback(trail.handle), middleware=[middleware], until_empty=True)
    assert (summary.handled, trail.steps) == (2, ["2+2"])


async def test_asyncio_middleware_fits_plain_handlers_too(shell: Shell) -> None:
    """In either shell a plain function can be a handler, and a plain function that returns call_next a middleware."""
    queue, trail = shell.queue(), Trail(shell)
    await queue.publish("1")
    middleware = [trail.middleware("m"), lambda message, call_next: call_next(message)]
    await queue.run(trail.handle, middleware=middleware, until_empty=True)
    assert trail.steps == ["m in", "1", "m out"]


async def test_what_is_no_middleware_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for middleware in [5, [5], ["x"], {"a": 1}, [None]]:
        with row(subtests, middleware=middleware):
            shell.redis.flushall()
            queue = shell.queue()
            with pytest.raises(ConfigurationTypeError, match="middleware"):
                await queue.run(shell.callback(print), middleware=middleware, until_empty=True)


@sync_only
async def test_the_sync_queue_refuses_async_middleware(shell: Shell) -> None:
    async def middleware(message: Any, call_next: Any) -> Any: ...

    with pytest.raises(ConfigurationTypeError, match="middleware is an async function"):
        await shell.queue().run(print, middleware=[middleware], until_empty=True)


# Listeners


@pytest.mark.promise("`on_event` may be several functions; one that fails disturbs neither the others nor the queue.")
@pytest.mark.parametrize("kind", [list, tuple])
async def test_each_listener_gets_every_event(shell: Shell, kind: Any) -> None:
    first, last = shell.events(), shell.events()

    def fail(event: Any) -> None:
        raise RuntimeError("broken listener")

    queue = shell.queue(wait=0, on_event=kind([first.listen, shell.callback(fail), last.listen]))
    with pytest.warns(RuntimeWarning, match="broken listener"):
        await queue.publish("m")
        assert await take(queue) == shell.payload("m")
    assert first.names == last.names and "publish/success" in first.names and "ack/success" in last.names


async def test_no_listeners_are_none(shell: Shell) -> None:
    queue = shell.queue(wait=0, on_event=[])
    await queue.publish("m")
    assert not queue.queue._protocol.emitter.wanted


async def test_what_is_no_listener_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for on_event in [5, [5], [print, None], {print}, "print"]:
        with row(subtests, on_event=on_event), pytest.raises(ConfigurationTypeError, match="on_event"):
            shell.queue(on_event=on_event)


@sync_only
async def test_the_sync_queue_refuses_async_listeners_in_a_list(shell: Shell) -> None:
    async def listen(event: Any) -> None: ...

    with pytest.raises(ConfigurationTypeError, match="on_event is an async function"):
        shell.queue(on_event=[print, listen])
