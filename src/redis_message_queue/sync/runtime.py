"""The blocking runtime: it does what the protocol asks before it returns, so nothing ever suspends."""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from redis_message_queue.process.identity import after_fork, free_if_orphaned
from redis_message_queue.process.local_runtime import NEVER_AWAITABLE, LocalRuntime
from redis_message_queue.protocol.port import Answer, Pause, finish

T = TypeVar("T")

_locks: WeakSet[Any] = WeakSet()


def _free_inherited_locks(deadline: float) -> None:
    """Replace the locks in a forked child: no thread here would release those that the parent held."""
    for lock in list(_locks):
        free_if_orphaned(lock, deadline)


after_fork(_free_inherited_locks)


class BlockingRuntime(LocalRuntime):
    """A `Runtime` over `time` and `threading`."""

    group_scope = LocalRuntime.process
    thread = staticmethod(threading.get_ident)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def call_user(self, function: Callable[..., Any], *arguments: Any) -> Answer[Any]:
        try:
            value = function(*arguments)
        except Exception as error:
            return Answer(error=error)
        if type(value) not in NEVER_AWAITABLE and inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            name = getattr(function, "__name__", repr(function))
            complaint = TypeError(f"{name} returned an awaitable, which the sync queue cannot await")
            return Answer(error=complaint, unawaited=True)
        return Answer(value)

    async def call_user_shielded(
        self, cancellations: list[BaseException], function: Callable[..., Any], *arguments: Any
    ) -> Answer[Any]:
        return await self.call_user(function, *arguments)  # nobody cancels a thread

    async def shielded(self, cancellations: list[BaseException], work: Coroutine[Any, Any, T]) -> T:
        return await work  # nobody cancels a thread

    def spawn(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> HeartbeatThread:
        return HeartbeatThread(work)

    def lock(self) -> AbstractContextManager[Any]:
        lock = threading.RLock()
        _locks.add(lock)
        return lock

    def notification(self) -> ThreadNotification:
        return ThreadNotification()

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError | TimeoutError)

    def is_cancellation(self, error: BaseException) -> bool:
        return False


class ThreadNotification:
    """Wakes a thread; a signal handler may send it at any time."""

    __slots__ = ("_sent", "send")

    def __init__(self) -> None:
        self._sent: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.send = partial(self._sent.put, None)

    async def wait(self, seconds: float) -> None:
        with suppress(queue.Empty):
            self._sent.get(timeout=max(0.0, seconds))


class HeartbeatThread:
    """A daemon thread that runs a coroutine of the protocol beside a handler."""

    _STOP_SECONDS = 0.1  # a renewal takes a few ms; one that hangs is fenced off, and must not delay the ack

    def __init__(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=lambda: finish(work(self._pause)), name="redis-message-queue-heartbeat", daemon=True
        )
        self._thread.start()

    async def _pause(self, seconds: float) -> bool:
        return self._stopped.wait(seconds)

    async def stop(self) -> None:
        self._stopped.set()
        self._thread.join(self._STOP_SECONDS)

    async def end(self) -> None:
        self._stopped.set()
        self._thread.join()

    def abandon(self) -> None:
        self._stopped.set()
