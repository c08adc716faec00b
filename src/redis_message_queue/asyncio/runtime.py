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

    _alarm: _Alarm | None = None

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

    def notification(self) -> TaskNotification:
        loop = asyncio.get_running_loop()
        if self._alarm is None or self._alarm.loop is not loop:
            self._alarm = _Alarm(loop)
        return TaskNotification(self._alarm)

    def thread(self) -> None:
        """No task runs inside of another one."""

    def group_scope(self) -> object:
        return (self.process(), asyncio.get_running_loop())

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError | TimeoutError)

    def is_cancellation(self, error: BaseException) -> bool:
        return isinstance(error, asyncio.CancelledError)


class TaskNotification:
    """Wakes a task."""

    __slots__ = ("_alarm", "_is_sent", "_waiter", "ends_at")

    def __init__(self, alarm: _Alarm) -> None:
        self._alarm = alarm
        self._is_sent = False
        self._waiter: asyncio.Future[None] | None = None

    def send(self) -> None:
        self._is_sent = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        if not self._is_sent:
            loop = self._alarm.loop
            self._waiter, self.ends_at = loop.create_future(), loop.time() + seconds
            self._alarm.add(self)
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._alarm.waiting.discard(self)
        self._is_sent = False


class _Alarm:
    """Ends the waits of a loop on time: one timer for all of them, because a timer costs more than a wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: set[TaskNotification] = set()

    def add(self, notification: TaskNotification) -> None:
        self.waiting.add(notification)
        if self._timer is None or notification.ends_at < self._timer.when():
            self._start(notification.ends_at)

    def _start(self, ends_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(ends_at, self._ring)

    def _ring(self) -> None:
        self._timer, now = None, self.loop.time()
        for one in list(self.waiting):
            if one.ends_at <= now:
                one.wake()
                self.waiting.discard(one)
        if self.waiting:
            self._start(min(one.ends_at for one in self.waiting))


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
