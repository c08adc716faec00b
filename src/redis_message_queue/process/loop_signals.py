"""Stops all loops of the process on SIGTERM and SIGINT, where these have their default handlers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from redis_message_queue.process.interrupt import act_as_before

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Stop = Callable[[signal.Signals], None]


class LoopSignals:
    """The signal handlers of this process, as long as loops run in its main thread.

    The first signal stops all loops, also those of other threads. The same signal again acts as without us: it may
    end the process, raise `KeyboardInterrupt`, or cancel the main task of `asyncio.run`.
    """

    def __init__(self) -> None:
        self._loops: dict[object, Stop] = {}
        self._of_main_thread: set[object] = set()
        self._former: dict[int, Any] = {}
        self._received: list[signal.Signals] = []

    def join(self, loop: object, stop: Stop) -> None:
        """Stop this loop when a signal comes, or at once if the loops beside it are being stopped."""
        self._loops[loop] = stop
        if threading.current_thread() is threading.main_thread():
            self._of_main_thread.add(loop)
            for number in _SIGNALS:
                current = signal.getsignal(number)
                if number not in self._received and _is_default(current):
                    self._former[number] = current
                    signal.signal(number, self._on_signal)
        for received in self._received[:1]:
            stop(received)

    def leave(self, loop: object) -> None:
        """The loop has ended. The last one of the main thread restores the signal handlers."""
        self._loops.pop(loop, None)
        self._of_main_thread.discard(loop)
        if not self._of_main_thread and threading.current_thread() is threading.main_thread():
            self._restore()

    def after_fork(self) -> None:
        """Restore the signal handlers in a forked child, whose loops are its parent's."""
        self._loops.clear()
        self._of_main_thread.clear()
        self._restore()

    def _restore(self) -> None:
        for number, former in self._former.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, former)
        self._former, self._received = {}, []

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in self._received:
            act_as_before(number, self._former[number], frame)
            return
        self._received.append(signal.Signals(number))
        for stop in list(self._loops.values()):
            stop(self._received[0])


def _is_default(handler: Any) -> bool:
    """Whether nobody has chosen this handler; `asyncio.run` sets one for SIGINT."""
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(runner, asyncio.Runner)


_loop_signals = LoopSignals()
os.register_at_fork(after_in_child=_loop_signals.after_fork)


@contextmanager
def stopped_by_signals(stop: Stop, *, wanted: bool = True) -> Iterator[None]:
    """A block in which a signal stops a loop, if that is wanted."""
    loop = object()
    try:
        if wanted:
            _loop_signals.join(loop, stop)
        yield
    finally:
        _loop_signals.leave(loop)
