"""The asyncio runtime: it suspends where the blocking one waits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from redis_message_queue.process.local_runtime import NEVER_AWAITABLE, LocalRuntime
from redis_message_queue.protocol.port import Answer, Pause

T = TypeVar("T")


class AsyncioRuntime(LocalRuntime):
    """A `Runtime` over the running loop."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call_user(self, function: Callable[..., Any], *arguments: Any) -> Answer[Any]:
        try:
            value = function(*arguments)
            if type(value) not in NEVER_AWAITABLE and inspect.isawaitable(value):
                value = await value
            return Answer(value)
        except StopIteration as error:
            # No coroutine can let it through; this is what Python itself makes of it.
            trouble = RuntimeError("a callback raised StopIteration")
            trouble.__cause__ = error
            return Answer(error=trouble)
        except Exception as error:
            return Answer(error=error)

    async def call_user_shielded(
        self, cancellations: list[BaseException], function: Callable[..., Any], *arguments: Any
    ) -> Answer[Any]:
        return await self.shielded(cancellations, self.call_user(function, *arguments))

    async def shielded(self, cancellations: list[BaseException], work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError as cancelled:
                if task.cancelled():  # not us: the work was cancelled from inside
                    raise
                cancellations.append(cancelled)

    def spawn(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> HeartbeatTask:
        return HeartbeatTask(work)

    def lock(self) -> AbstractContextManager[Any]:
        return nullcontext()  # one thread, and no await inside

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError | TimeoutError)

    def is_cancellation(self, error: BaseException) -> bool:
        return isinstance(error, asyncio.CancelledError)


class HeartbeatTask:
    """A task that runs a coroutine of the protocol beside a handler."""

    _STOP_SECONDS = 0.1  # a renewal takes a few ms; one that hangs is fenced off, and must not delay the ack

    def __init__(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> None:
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(work(self._pause), name="redis-message-queue-heartbeat")

    async def _pause(self, seconds: float) -> bool:
        if seconds <= 0 or self._stopped.is_set():
            return self._stopped.is_set()
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        self._stopped.set()
        try:
            await asyncio.wait({self._task}, timeout=self._STOP_SECONDS)
        finally:
            self._task.cancel()

    async def end(self) -> None:
        self._stopped.set()
        cancelled = None
        while not self._task.done():
            try:
                await asyncio.wait({self._task})
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        if cancelled is not None:
            raise cancelled

    def abandon(self) -> None:
        self._task.cancel()
