"""A child process that is killed where its work calls `kill_here`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from redis_message_queue.asyncio.redis_port import AsyncioPort
from redis_message_queue.values import checks
from redis_message_queue.values.errors import FaultInjectionError

_MAX_REPORT_LENGTH = 20_000  # a pipe holds 65,536 bytes, and the parent reads them only after the child has ended

Work = Callable[[Callable[[str], None]], None]


@dataclass
class KillPoint:
    """The call of `kill_here` that kills the child: the nth one with this name, or the nth one of all."""

    name: str | None = None
    nth: int = 1

    def __post_init__(self) -> None:
        if self.name is not None:
            checks.text("at", self.name)
        checks.whole_number("nth", self.nth)
        self._calls_left = self.nth

    def __str__(self) -> str:
        return f"call {self.nth} of kill_here({'' if self.name is None else repr(self.name)})"

    def install(self) -> None:
        """Let `kill_here` kill this process, which is the child."""
        _state.kill_point, _state.redeliveries = self, 0

    def called(self, name: str | None) -> None:
        """Kill this process if this call of `kill_here` is the chosen one."""
        if self.name not in (None, name):
            return
        self._calls_left -= 1
        if self._calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # the signal may take a moment, in which the handler must not continue


class _State:
    """The settings of `kill_here` in this process."""

    def __init__(self) -> None:
        self.kill_point: KillPoint | None = None  # only in a child
        self.redeliveries = 0  # how many second deliveries are running, in the process of the test


_state = _State()


def kill_here(name: str | None = None) -> None:
    """Kill the process with SIGKILL during the first delivery of `kill_and_redeliver`.

    In the second delivery this does nothing. If a handler has several points, give each a ``name`` and choose one with
    ``kill_and_redeliver(..., at=name)``.

    Raises:
        FaultInjectionError: `kill_and_redeliver` did not call this handler. It is for tests, not for production.
    """
    if _state.kill_point is not None:
        _state.kill_point.called(name)
    elif not _state.redeliveries:
        raise FaultInjectionError(
            "kill_here() was called outside of kill_and_redeliver(queue, handler); "
            "pass the handler to that function, or remove the call"
        )


@contextlib.contextmanager
def kill_points_disabled() -> Iterator[None]:
    """In this block `kill_here` does nothing."""
    _state.redeliveries += 1
    try:
        yield
    finally:
        _state.redeliveries -= 1


class KilledChild:
    """A forked process that runs ``work`` and must be killed at ``kill_point``."""

    def __init__(self, work: Work, kill_point: KillPoint) -> None:
        self._kill_point = kill_point
        self._reading_end, writing_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of a fork beside other threads. The child does one piece of work and ends.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reading_end)
            _run_child(work, kill_point, writing_end)
        os.close(writing_end)
        self._status: int | None = None

    def has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def close(self) -> None:
        """End the child if it still runs, so that it does not outlive the test."""
        if not self.has_ended():
            os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitpid(self._pid, 0)[1]
        os.close(self._reading_end)

    def notes(self) -> list[str]:
        """Return what the work noted before it was killed; raise if it was not killed at its kill point."""
        assert self._status is not None
        notes, _, report = self._read_pipe().partition("\0")
        if os.WIFSIGNALED(self._status) and os.WTERMSIG(self._status) == signal.SIGKILL and not report:
            return notes.splitlines()
        if os.WIFSIGNALED(self._status):
            report = f"signal {os.WTERMSIG(self._status)} ended its process"
        raise FaultInjectionError(
            f"the handler did not reach {self._kill_point}: {report.strip() or 'its process exited'}"
        )

    def _read_pipe(self) -> str:
        """Read without waiting for the end: a process that the handler started may hold the other end open."""
        os.set_blocking(self._reading_end, False)
        data = b""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._reading_end, 65_536):
                data += part
        return data.decode()


def _run_child(work: Work, kill_point: KillPoint, writing_end: int) -> NoReturn:
    """Do the work in the child, and end the process whatever happens: it must never return into the test."""
    try:
        try:
            AsyncioPort.after_fork = _use_new_connections  # type: ignore[assignment, method-assign]  # only in this child
            kill_point.install()
            work(lambda note: _write(writing_end, note + "\n"))
            report = "it returned first"
        except BaseException:
            report = f"it raised first:\n{traceback.format_exc()[-_MAX_REPORT_LENGTH:]}"
        _write(writing_end, f"\0{report}")
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(0)


def _write(descriptor: int, text: str) -> None:
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(descriptor, data) :]


def _use_new_connections(port: Any) -> None:
    """Give the client of an asyncio queue new connections in the child; the open ones belong to the parent."""
    client = port._client
    pool = client.connection_pool
    if vars(pool).get("_made_in") != os.getpid():
        client.connection_pool = type(pool)(connection_class=pool.connection_class, **pool.connection_kwargs)
        client.connection_pool._made_in = os.getpid()
        # Keep the old pool alive: collecting its connections would remove them from the selector that the parent
        # shares with the child, and the parent would wait for replies forever.
        client.connection_pool._pool_of_parent = pool
    port.start_over()
