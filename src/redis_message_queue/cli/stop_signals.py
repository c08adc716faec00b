"""Counts the stop signals of a long-running command: the first lets it finish what it has begun."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.process.interrupt import DEFAULT_SIGNALS, BaseGracefulInterruptHandler


class StopSignals(BaseGracefulInterruptHandler):
    """Counts SIGINT, SIGTERM and SIGHUP inside its `with`; a signal that was ignored, as under nohup, stays ignored.

    The same signal again means: stop now. A different one does not, because supervisors send SIGTERM along with a
    terminal's SIGINT. ``first`` is called inside the signal handler, for code that cannot poll.
    """

    def __init__(self, first: Callable[[], Any] | None = None) -> None:
        self._received: Counter[int] = Counter()
        self._former: dict[int, Any] = {}
        self._first = first

    def __enter__(self) -> Self:
        for one in DEFAULT_SIGNALS:
            if signal.getsignal(one) != signal.SIG_IGN:
                self._former[one] = signal.signal(one, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for one, former in self._former.items():
            signal.signal(one, former)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self._received[number] += 1
        if self._received.total() == 1 and self._first is not None:
            self._first()

    def is_interrupted(self) -> bool:
        return bool(self._received)

    @property
    def times(self) -> int:
        """How often the most frequent of them was received."""
        return max(self._received.values(), default=0)

    @property
    def status(self) -> ExitStatus:
        """The exit status of a command that was stopped before it was done."""
        return ExitStatus.INTERRUPTED if signal.SIGINT in self._received else ExitStatus.TERMINATED
