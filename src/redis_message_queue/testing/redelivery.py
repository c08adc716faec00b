"""One message, delivered twice: what a handler goes through when its consumer dies."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, overload

from redis_message_queue import checks
from redis_message_queue.errors import ConfigurationError, RehearsalError
from redis_message_queue.protocol.port import finish
from redis_message_queue.testing.fast_forward import let_pass
from redis_message_queue.testing.inside import AsyncioQueue, BlockingQueue, Queue, keys_of, port_of, protocol_of
from redis_message_queue.testing.killing import Doom, DoomedChild, surviving

Handler = Callable[[Any], Any]


class _Gone(BaseException):
    """The sudden end of a consumer: no `Exception`, so that the queue keeps its hands off the message."""


@overload
def deliver_twice(queue: BlockingQueue, handler: Handler) -> None: ...


@overload
def deliver_twice(queue: AsyncioQueue, handler: Handler) -> Coroutine[Any, Any, None]: ...


def deliver_twice(queue: Queue, handler: Handler) -> Coroutine[Any, Any, None] | None:
    """Give the next message to ``handler``, lose the acknowledgement, and deliver it again when its lease is over.

    As when a consumer dies between the end of its handler and the acknowledgement. The second delivery is acknowledged.
    An exception of the handler comes out as itself. With an asyncio queue, await it.
    """
    rehearsal = _Rehearsal(queue, handler)
    if isinstance(queue, AsyncioQueue):
        return _deliver_twice_awaited(queue, rehearsal)
    with contextlib.suppress(_Gone), queue.process_message() as message:
        rehearsal.begin(message)
        _refuse_awaitable(handler(message))
        raise _Gone
    finish(rehearsal.lapse())
    _deliver_again(queue, rehearsal)
    return None


async def _deliver_twice_awaited(queue: AsyncioQueue, rehearsal: _Rehearsal) -> None:
    with contextlib.suppress(_Gone):
        async with queue.process_message() as message:
            rehearsal.begin(message)
            await _done(rehearsal.handler(message))
            raise _Gone
    await rehearsal.lapse()
    await _deliver_again_awaited(queue, rehearsal)


@overload
def kill_and_redeliver(
    queue: BlockingQueue,
    handler: Handler,
    *,
    at: str | None = None,
    after: str | Callable[..., Any] | None = None,
    nth: int = 1,
    timeout_seconds: float = 30.0,
) -> None: ...


@overload
def kill_and_redeliver(
    queue: AsyncioQueue,
    handler: Handler,
    *,
    at: str | None = None,
    after: str | Callable[..., Any] | None = None,
    nth: int = 1,
    timeout_seconds: float = 30.0,
) -> Coroutine[Any, Any, None]: ...


def kill_and_redeliver(
    queue: Queue,
    handler: Handler,
    *,
    at: str | None = None,
    after: str | Callable[..., Any] | None = None,
    nth: int = 1,
    timeout_seconds: float = 30.0,
) -> Coroutine[Any, Any, None] | None:
    """Give the next message to ``handler`` in a child process, kill it there, and deliver the message again here.

    The child dies by SIGKILL where the handler calls `kill_here` (``at`` chooses by name), or when the function
    ``after``, itself or its name, has returned; in either case for the ``nth`` time. Then the lease is over, and the
    same message goes to ``handler`` in this process. What the child did in memory is gone with it; what it wrote to
    files, databases and Redis is there. With an asyncio queue, await it.
    """
    checks.number("timeout_seconds", timeout_seconds)
    rehearsal, doom = _Rehearsal(queue, handler), Doom(at, after, nth)
    if isinstance(queue, AsyncioQueue):
        return _kill_and_redeliver_awaited(queue, rehearsal, doom, timeout_seconds)

    def consume(note: Callable[[str], None]) -> None:
        with queue.process_message() as message:
            note(rehearsal.begin(message))
            _refuse_awaitable(handler(message))

    with contextlib.closing(DoomedChild(consume, doom)) as child:
        deadline = time.monotonic() + timeout_seconds
        while not child.has_ended():
            _refuse_to_wait_longer(deadline, timeout_seconds, doom)
            time.sleep(0.002)
        (rehearsal.message_id,) = child.last_words()
    finish(rehearsal.lapse())
    _deliver_again(queue, rehearsal)
    return None


async def _kill_and_redeliver_awaited(
    queue: AsyncioQueue, rehearsal: _Rehearsal, doom: Doom, timeout_seconds: float
) -> None:
    async def consume(note: Callable[[str], None]) -> None:
        async with queue.process_message() as message:
            note(rehearsal.begin(message))
            await _done(rehearsal.handler(message))

    with contextlib.closing(DoomedChild(lambda note: asyncio.run(consume(note)), doom)) as child:
        deadline = time.monotonic() + timeout_seconds
        while not child.has_ended():
            _refuse_to_wait_longer(deadline, timeout_seconds, doom)
            await asyncio.sleep(0.002)
        (rehearsal.message_id,) = child.last_words()
    await rehearsal.lapse()
    await _deliver_again_awaited(queue, rehearsal)


class _Rehearsal:
    """What both deliveries of one message have in common."""

    def __init__(self, queue: Queue, handler: Handler) -> None:
        checks.required_function("handler", handler)
        lease = protocol_of(queue).store.options.message_visibility_timeout_seconds
        if lease is None:
            raise ConfigurationError(
                "this queue has visibility_timeout_seconds=None and delivers a message at most once; "
                "give it a lease to see what a second delivery does"
            )
        self.queue = queue
        self.handler = handler
        self.lease = lease
        self.message_id = ""

    def begin(self, message: Any) -> str:
        """The first delivery: which message it is."""
        if message is None:
            raise RehearsalError(f"there is no message in {self._name}; publish one first")
        self.message_id = self._current_id()
        return self.message_id

    def lapse(self) -> Coroutine[Any, Any, None]:
        """The lease of whoever had it is over."""
        return let_pass(self.lease, port_of(self.queue), keys_of(self.queue))

    def again(self, message: Any) -> Any:
        """The second delivery, of this message and no other."""
        if self._current_id() != self.message_id:
            raise _Gone
        return self.handler(message)

    def _current_id(self) -> str:
        message = self.queue.current_message()
        assert message is not None
        return message.id

    def not_again(self) -> RehearsalError:
        return RehearsalError(
            f"message {self.message_id} was not delivered a second time by {self._name}: it is among the dead letters "
            "if max_delivery_count or message_ttl_seconds allow no second time, or another message or consumer came "
            "first; let it be the only message of its queue",
            queue=self._name,
            message_id=self.message_id,
        )

    @property
    def _name(self) -> str:
        return protocol_of(self.queue).options.name


def _deliver_again(queue: BlockingQueue, rehearsal: _Rehearsal) -> None:
    came = False
    with contextlib.suppress(_Gone), surviving():
        came = queue.process_message_callback(rehearsal.again)
    if not came:
        raise rehearsal.not_again()


async def _deliver_again_awaited(queue: AsyncioQueue, rehearsal: _Rehearsal) -> None:
    came = False
    with contextlib.suppress(_Gone), surviving():
        came = await queue.process_message_callback(rehearsal.again)
    if not came:
        raise rehearsal.not_again()


def _refuse_to_wait_longer(deadline: float, timeout_seconds: float, doom: Doom) -> None:
    if time.monotonic() > deadline:
        raise RehearsalError(
            f"the handler was to be killed when {doom}, and was still at work after {timeout_seconds:g} seconds; "
            "let it get there, or give it more with timeout_seconds=..."
        )


async def _done(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def _refuse_awaitable(result: Any) -> None:
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError("handler is an async function; give it to a queue of redis_message_queue.asyncio")
