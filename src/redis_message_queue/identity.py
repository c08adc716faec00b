"""Which process this is, and names that nobody else has: after any fork, and after a snapshot was restored."""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

_MASK = (1 << 128) - 1
_PID_BITS = 32
_ORPHANED_LOCK_SECONDS = 1.0  # a thread that lives holds none of these locks for longer than microseconds

AfterFork = Callable[[float], None]
"""Puts something right in a forked child. Until the given monotonic time, a lock may belong to a thread that lives."""


class _Process:
    """Compares the real process id at each use: not every server that forks runs Python's fork hooks (uWSGI)."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._restored = 0
        self._callbacks: list[AfterFork] = []
        self._after_restore: list[Callable[[], None]] = []
        self._guards: dict[int, threading.RLock] = {}
        os.register_at_fork(after_in_child=self._after_hooked_fork)

    def number(self) -> int:
        """The process id, and in the high bits how often a snapshot of this process was restored."""
        pid = os.getpid()
        if pid != self._pid:
            self._after_unhooked_fork(pid)
        return pid + self._restored

    def after_fork(self, callback: AfterFork) -> None:
        self._callbacks.append(callback)

    def after_copy(self, callback: Callable[[], None]) -> None:
        """For what must differ between copies of a process, whether a fork made them or a snapshot."""
        self._callbacks.append(lambda _: callback())
        self._after_restore.append(callback)

    def after_restore(self) -> None:
        """Let nothing that was counted before the snapshot be counted on."""
        self._restored += 1 << _PID_BITS
        for callback in self._after_restore:
            callback()

    def _after_hooked_fork(self) -> None:
        self._guards.clear()
        for callback in self._callbacks:
            callback(0.0)  # the child has one thread, which has released what it could
        self._pid = os.getpid()

    def _after_unhooked_fork(self, pid: int) -> None:
        """Found out at the first use; by then the child may have threads, and the others wait for the first one."""
        with self._guards.setdefault(pid, threading.RLock()):
            if pid != self._pid:
                for callback in self._callbacks:
                    callback(time.monotonic() + _ORPHANED_LOCK_SECONDS)
                self._pid = pid


class _Sequence:
    """Walks through all 128-bit numbers from a random start in random odd steps, so none comes twice.

    A tenth of the price of `os.urandom` for each message, which cost 2.7 of the 6 µs that a publish spends
    outside redis-py.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new start: two processes must not walk the same way."""
        start = int.from_bytes(os.urandom(16), "big")
        step = int.from_bytes(os.urandom(16), "big") | 1
        self._numbers = itertools.count(start, step)

    def next(self) -> bytes:
        process()  # which restarts it in a forked child
        return (next(self._numbers) & _MASK).to_bytes(16, "big")


def free_if_orphaned(lock: threading.Lock | threading.RLock, deadline: float) -> None:
    """Open a lock in a forked child if its holder did not come along: nobody would ever release it."""
    if lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        lock.release()
    else:
        lock._at_fork_reinit()  # type: ignore[union-attr]  # what Python's own hooks use


_process = _Process()
process = _process.number
after_fork = _process.after_fork
after_copy = _process.after_copy
_ids = _Sequence()
after_copy(_ids.restart)
fresh_id = _ids.next
restart_ids = _ids.restart


def after_restore() -> None:
    """Call this first in a process that was restored from a snapshot, if it may be restored more than once.

    Copies of one process would give out the same message ids and reuse each other's call numbers, so that a publish of
    one copy would be taken for a repetition of the other's. After this call each copy has its own. Blocking queues go
    on working, with new connections; asyncio queues raise `ConfigurationError`: make the client and the queue anew.
    """
    _process.after_restore()


@cache
def host() -> bytes:
    """Four bytes that tell where a process number means something: this boot of this machine, or this container."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # where there is no /proc, the name alone must do
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("|".join(parts).encode()).digest()[:4]


def slot_name() -> bytes:
    """Which host, which process, and what no other slot has: fifteen bytes."""
    return host() + os.getpid().to_bytes(4, "big") + os.urandom(7)


def is_of_this_host(slot_name: bytes) -> bool:
    """Whether its process runs, or ran, where this one does."""
    return slot_name[:4] == host()


def is_of_this_process(slot_name: bytes) -> bool:
    """Whether it is one of ours."""
    return slot_name[:8] == host() + os.getpid().to_bytes(4, "big")


def is_gone(slot_name: bytes) -> bool:
    """Whether its process ran on this host and has ended."""
    if not is_of_this_host(slot_name):
        return False
    try:
        os.kill(int.from_bytes(slot_name[4:8], "big"), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # somebody else's, or no process number at all
        return False
    return False
