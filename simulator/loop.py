"""An event loop with virtual time: it runs the tasks of many simulated processes, in an order that a seed decides.

Within one process callbacks run in the order that asyncio promises. Which process goes next is chosen at random. Time
stands still while anybody can go on, and then jumps to the next timer. A process can freeze, and goes on later; or die,
and nothing of it ever runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar
from random import Random
from typing import Any

_RESOLUTION = 1e-6
_EPOCH_US = 1_700_000_000_000_000  # what the server's clock says at virtual time 0
MOST_CALLBACKS = 400_000  # of one schedule: none needs a tenth of it


class Livelock(Exception):
    """The schedule goes round in circles."""


class Process:
    """Tasks that live and die together, as those of an operating system's process do."""

    def __init__(self, name: str, number: int, clock_offset: float = 0.0) -> None:
        self.name = name
        self.number = number
        self.clock_offset = clock_offset  # monotonic clocks of two processes have nothing to do with each other
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_dead = False
        self.frozen_until = 0.0
        self.frozen_seconds = 0.0  # in all
        self.errors: list[BaseException] = []  # that nobody caught

    def __repr__(self) -> str:
        return self.name


_process: ContextVar[Process] = ContextVar("simulated_process")


class SimulatedLoop(asyncio.AbstractEventLoop):
    """What asyncio needs of a loop, without sockets and threads."""

    def __init__(self, random: Random, start: float = 1000.0) -> None:
        self._random = random
        self._now = start
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process]] = []
        self._count = 0
        self.world = Process("world", 0)  # the network, the server and the faults
        self.processes: list[Process] = [self.world]
        self.callbacks = 0

    # -- what asyncio asks for

    def time(self) -> float:
        return self._now

    def clock_us(self) -> int:
        """What the server's clock says."""
        return _EPOCH_US + int(self._now * 1_000_000)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        process = context.get(_process, self.world)
        handle = asyncio.Handle(callback, args, self, context)
        if not process.is_dead:
            process.ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        # No sleep is shorter than the clock's resolution, or rounding would let time stand still.
        return self.call_at(self._now + max(delay, _RESOLUTION), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle, context.get(_process, self.world)))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers leave the heap when their time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a dead process leaves tasks behind
        process = (context or contextvars.copy_context()).get(_process, self.world)
        process.tasks.add(task)  # nobody else may hold it, and it must not be collected
        task.add_done_callback(process.tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.errors.append(error if isinstance(error, BaseException) else RuntimeError(str(context)))

    # -- processes

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a process with its first task."""
        self.processes.append(process)
        context = contextvars.copy_context()
        context.run(_process.set, process)
        return context.run(lambda: self.create_task(work, context=context))

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin another task of a running process."""
        context = contextvars.copy_context()
        context.run(_process.set, process)
        return context.run(lambda: self.create_task(work, context=context))

    def kill(self, process: Process) -> None:
        """Let the process end here and now: no `finally` runs."""
        process.is_dead = True
        process.ready.clear()

    def freeze(self, process: Process, seconds: float) -> None:
        """Stop the process for a while, as SIGSTOP does."""
        until = self._now + seconds
        if until > process.frozen_until:
            process.frozen_seconds += until - max(self._now, process.frozen_until)
            process.frozen_until = until

    # -- running

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run until it is over, or nothing can happen any more."""
        events._set_running_loop(self)
        try:
            while not is_over():
                process = self._choose()
                if process is None:
                    return
                self.callbacks += 1
                if self.callbacks > MOST_CALLBACKS:
                    raise Livelock(f"{MOST_CALLBACKS} callbacks ran and the schedule is not over")
                handle = process.ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)

    def _choose(self) -> Process | None:
        while True:
            now = self._now
            ready = [one for one in self.processes if one.ready and one.frozen_until <= now]
            if ready:
                return ready[0] if len(ready) == 1 else ready[int(self._random.random() * len(ready))]
            if not self._let_time_pass():
                return None

    def _let_time_pass(self) -> bool:
        """Jump to the next timer or to the end of a freeze. Whether there was any."""
        timers = self._timers
        while timers and (timers[0][2].cancelled() or timers[0][3].is_dead):
            heapq.heappop(timers)
        thaws = [one.frozen_until for one in self.processes if one.ready and one.frozen_until > self._now]
        if timers:
            thaws.append(timers[0][0])
        if not thaws:
            return False
        self._now = max(self._now, min(thaws))
        while timers and timers[0][0] <= self._now:
            _, _, handle, process = heapq.heappop(timers)
            if not handle.cancelled() and not process.is_dead:
                process.ready.append(handle)
        return True

    def close_all(self) -> None:
        """End what is left: every port is closed by now, so nothing of it reaches the server."""
        events._set_running_loop(self)  # what ends may begin something else, which is then ended, too
        try:
            while left := [process for process in self.processes if process.tasks]:
                with suppress(BaseException):
                    left[0].tasks.pop().get_coro().close()
        finally:
            events._set_running_loop(None)
        for process in self.processes:
            process.ready.clear()
        self._timers.clear()
