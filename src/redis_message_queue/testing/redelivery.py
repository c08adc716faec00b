"""Deliver one message twice, as it happens when a consumer dies."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, overload

from redis_message_queue.protocol.port import finish
from redis_message_queue.sync.awaitable import refuse_awaitable
from redis_message_queue.testing.fast_forward import fast_forward_queue
from redis_message_queue.testing.killing import KilledChild, KillPoint, kill_points_disabled
from redis_message_queue.testing.queue_internals import AsyncQueue, Queue, SyncQueue, protocol_of
from redis_message_queue.values import checks
from redis_message_queue.values.errors import CleanupFailedError, ConfigurationError, FaultInjectionError

Handler = Callable[[Any], Any]


class _ConsumerDied(BaseException):
    """Ends a delivery as a crash does. It is not an `Exception`, so the queue does not settle the message."""


@overload
def deliver_twice(queue: SyncQueue, handler: Handler) -> None: ...


@overload
def deliver_twice(queue: AsyncQueue, handler: Handler) -> Coroutine[Any, Any, None]: ...


def deliver_twice(queue: Queue, handler: Handler) -> Coroutine[Any, Any, None] | None:
    """Call ``handler`` twice with the next message, as if its first acknowledgement had been lost.

    The handler gets a `ReceivedMessage`, as in `run`. If it calls `complete`, that raises `CleanupFailedError` in the
    first delivery: Redis did not answer. The message is acknowledged after the second call. With an asyncio queue,
    await the result.

    Args:
        queue: The queue to take the message from. It should be the only message in the queue.
        handler: Your handler. What it raises, ``deliver_twice`` raises, except that error of `complete`.

    Raises:
        FaultInjectionError: There was no message, or it was not delivered a second time.
    """
    run = _RedeliveryRun(queue, handler)
    if isinstance(queue, AsyncQueue):
        return _deliver_twice_async(queue, run)
    with (
        contextlib.suppress(_ConsumerDied),
        queue.process_message() as message,
        run.losing_its_ack(message) as received,
    ):
        _call(handler, received)
    _redeliver(queue, run)
    return None


async def _deliver_twice_async(queue: AsyncQueue, run: _RedeliveryRun) -> None:
    with contextlib.suppress(_ConsumerDied):
        async with queue.process_message() as message:
            with run.losing_its_ack(message) as received:
                await _await_if_needed(run.handler(received))
    await _redeliver_async(queue, run)


@overload
def kill_and_redeliver(
    queue: SyncQueue, handler: Handler, *, at: str | None = None, nth: int = 1, timeout_seconds: float = 30.0
) -> None: ...


@overload
def kill_and_redeliver(
    queue: AsyncQueue, handler: Handler, *, at: str | None = None, nth: int = 1, timeout_seconds: float = 30.0
) -> Coroutine[Any, Any, None]: ...


def kill_and_redeliver(
    queue: Queue, handler: Handler, *, at: str | None = None, nth: int = 1, timeout_seconds: float = 30.0
) -> Coroutine[Any, Any, None] | None:
    """Call ``handler`` with the next message in a child process, kill it at `kill_here`, and deliver the message again.

    The handler gets a `ReceivedMessage`, as in `run`. SIGKILL ends the child. Then the lease expires, and ``handler``
    gets the same message in this process, where it is acknowledged. A message that was completed before the child was
    killed does not come again. The child's memory is lost; what it wrote to files, databases and Redis stays. With an
    asyncio queue, await the result.

    Args:
        queue: The queue to take the message from. It should be the only message in the queue.
        handler: Your handler, which calls `kill_here`.
        at: The name of the `kill_here` that kills, if there are several.
        nth: Which call of it kills.
        timeout_seconds: How long the child may take to get there.

    Raises:
        FaultInjectionError: There was no message, the child was not killed there, or the message did not come again.
    """
    checks.number("timeout_seconds", timeout_seconds)
    run, kill_point = _RedeliveryRun(queue, handler), KillPoint(at, nth)
    if isinstance(queue, AsyncQueue):
        return _kill_and_redeliver_async(queue, run, kill_point, timeout_seconds)

    def consume(note: Callable[[str], None]) -> None:
        with queue.process_message() as message:
            _call(handler, run.noting_completion(message, note))

    with contextlib.closing(KilledChild(consume, kill_point)) as child:
        for pause in _pauses_until_ended(child, kill_point, timeout_seconds):
            time.sleep(pause)
        run.message_id, *completed = child.notes()
    if not completed:
        _redeliver(queue, run)
    return None


async def _kill_and_redeliver_async(
    queue: AsyncQueue, run: _RedeliveryRun, kill_point: KillPoint, timeout_seconds: float
) -> None:
    async def consume(note: Callable[[str], None]) -> None:
        async with queue.process_message() as message:
            await _await_if_needed(run.handler(run.noting_completion(message, note)))

    with contextlib.closing(KilledChild(lambda note: asyncio.run(consume(note)), kill_point)) as child:
        for pause in _pauses_until_ended(child, kill_point, timeout_seconds):
            await asyncio.sleep(pause)
        run.message_id, *completed = child.notes()
    if not completed:
        await _redeliver_async(queue, run)


class _Holder:
    """The consumer that holds a message, with another way to complete it."""

    def __init__(self, holder: Any, complete: Callable[[Any, Sequence[Any]], Awaitable[None]]) -> None:
        self._holder = holder
        self.queue_name = holder.queue_name
        self.is_lost = holder.is_lost
        self.complete = complete


class _RedeliveryRun:
    """Both deliveries of one message to one handler."""

    def __init__(self, queue: Queue, handler: Handler) -> None:
        checks.required_function("handler", handler)
        if isinstance(queue, SyncQueue):
            checks.plain_function("handler", handler)
        self._protocol = protocol_of(queue)
        self._name = self._protocol.options.name
        lease_seconds = self._protocol.store.options.message_visibility_timeout_seconds
        if lease_seconds is None:
            raise ConfigurationError(
                f"the queue {self._name!r} has visibility_timeout_seconds=None and delivers a message at most once; "
                "give it a timeout to test a second delivery"
            )
        self._queue = queue
        self._lease_seconds = lease_seconds
        self.handler = handler
        self.message_id = ""

    def _start(self, payload: Any) -> Any:
        """Begin the first delivery; return what `run` would give to the handler."""
        if payload is None:
            raise FaultInjectionError(
                f"the queue {self._name!r} has no message to deliver; publish one first", queue=self._name
            )
        received = self._current()
        self.message_id = received.id
        return received

    @contextlib.contextmanager
    def losing_its_ack(self, payload: Any) -> Iterator[Any]:
        """A block with the first delivery. Its consumer dies at the end, or when it completes the message."""
        received, lost = self._start(payload), list[Exception]()

        async def complete(_: Any, publish: Sequence[Any]) -> None:
            text = "Redis did not confirm that the message is completed (simulated by deliver_twice); it comes again"
            error = CleanupFailedError(text, queue=self._name, message_id=received.id, operation="complete")
            lost.append(error)
            raise error

        received._holder = _Holder(received._holder, complete)
        try:
            yield received
        except CleanupFailedError as error:
            if error not in lost:
                raise
        raise _ConsumerDied

    def noting_completion(self, payload: Any, note: Callable[[str], None]) -> Any:
        """Return the message of a first delivery in the child, which notes its id, and when it is completed."""
        received = self._start(payload)
        note(received.id)
        holder = received._holder

        async def complete(claim: Any, publish: Sequence[Any]) -> None:
            await holder.complete(claim, publish)
            note("completed")

        received._holder = _Holder(holder, complete)
        return received

    def expire_lease(self) -> Coroutine[Any, Any, None]:
        return fast_forward_queue(self._lease_seconds, self._protocol)

    def handle_again(self, _: Any) -> Any:
        """Begin the second delivery, unless this is another message."""
        received = self._current()
        if received.id != self.message_id:
            raise _ConsumerDied
        return self.handler(received)

    def _current(self) -> Any:
        received = self._queue.current_message()
        assert received is not None
        return received

    def check_redelivered(self, delivered: bool) -> None:
        if delivered:
            return
        raise FaultInjectionError(
            f"the queue {self._name!r} did not deliver message {self.message_id} a second time. Either it is a dead "
            "letter, because max_delivery_count or message_ttl_seconds allow no second delivery, or another message or "
            "consumer came first: make it the only message of its queue",
            queue=self._name,
            message_id=self.message_id,
        )


def _redeliver(queue: SyncQueue, run: _RedeliveryRun) -> None:
    finish(run.expire_lease())
    delivered = False
    with contextlib.suppress(_ConsumerDied), kill_points_disabled():
        delivered = queue.process_message_callback(run.handle_again)
    run.check_redelivered(delivered)


async def _redeliver_async(queue: AsyncQueue, run: _RedeliveryRun) -> None:
    await run.expire_lease()
    delivered = False
    with contextlib.suppress(_ConsumerDied), kill_points_disabled():
        delivered = await queue.process_message_callback(run.handle_again)
    run.check_redelivered(delivered)


def _pauses_until_ended(child: KilledChild, kill_point: KillPoint, timeout_seconds: float) -> Iterator[float]:
    """Yield how long to sleep before the next look at the child, until it has ended; raise when it takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while not child.has_ended():
        if time.monotonic() > deadline:
            raise FaultInjectionError(
                f"the handler did not reach {kill_point} within {timeout_seconds:g} seconds; "
                "change the handler, or allow more time with timeout_seconds=..."
            )
        yield 0.002


def _call(handler: Handler, received: Any) -> None:
    result = handler(received)
    if inspect.isawaitable(result):
        refuse_awaitable(result)


async def _await_if_needed(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
