"""Gives each process an identity of its own, even after a fork or a restored snapshot."""

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
_ORPHANED_LOCK_SECONDS = 1.0  # a running thread holds these locks for microseconds only

AfterFork = Callable[[float], None]
"""Repairs something in a forked child. Until the given monotonic time, a lock may belong to a running thread."""


class _Process:
    """Compares the real process id at each use, because some servers fork without Python's fork hooks (uWSGI)."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._restored = 0
        self._callbacks: list[AfterFork] = []
        self._after_restore: list[Callable[[], None]] = []
        self._guards: dict[int, threading.RLock] = {}
        os.register_at_fork(after_in_child=self._after_hooked_fork)

    def number(self) -> int:
        """Return the process id, with the number of restored snapshots in its high bits."""
        pid = os.getpid()
        if pid != self._pid:
            self._after_unhooked_fork(pid)
        return pid + self._restored

    def after_fork(self, callback: AfterFork) -> None:
        self._callbacks.append(callback)

    def after_copy(self, callback: Callable[[], None]) -> None:
        """Call back in each copy of the process, whether a fork or a snapshot made it."""
        self._callbacks.append(lambda _: callback())
        self._after_restore.append(callback)

    def after_restore(self) -> None:
        """Let nothing continue a count from before the snapshot."""
        self._restored += 1 << _PID_BITS
        for callback in self._after_restore:
            callback()

    def _after_hooked_fork(self) -> None:
        self._guards.clear()
        for callback in self._callbacks:
            callback(0.0)  # the child has one thread, which has released what it could
        self._pid = os.getpid()

    def _after_unhooked_fork(self, pid: int) -> None:
        """Run the callbacks at the first use; by then the child may have threads, and they wait for the first one."""
        with self._guards.setdefault(pid, threading.RLock()):
            if pid != self._pid:
                for callback in self._callbacks:
                    callback(time.monotonic() + _ORPHANED_LOCK_SECONDS)
                self._pid = pid


class _Sequence:
    """Counts through all 128-bit numbers from a random start in random odd steps, so none comes twice.

    It costs a tenth of an `os.urandom` for each message, which took 2.7 of the 6 µs that a publish spends outside
    redis-py.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Choose a new start and step: two processes must not count through the same numbers."""
        start = int.from_bytes(os.urandom(16), "big")
        step = int.from_bytes(os.urandom(16), "big") | 1
        self._numbers = itertools.count(start, step)

    def next(self) -> bytes:
        if os.getpid() != _process._pid:
            process()  # which restarts it in a forked child
        return (next(self._numbers) & _MASK).to_bytes(16, "big")


def free_if_orphaned(lock: threading.Lock | threading.RLock, deadline: float) -> None:
    """Open a lock in a forked child if its holder is a thread of the parent, which will never release it here."""
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
new_id = _ids.next
restart_ids = _ids.restart


def after_restore() -> None:
    """Call this first in a process that was restored from a snapshot, if the snapshot may be restored more than once.

    Copies of one process would use the same message ids and call numbers, so Redis would take a publish of one copy for
    a retry of the other's. After this call each copy has its own. Sync queues continue, with new connections.
    Async queues raise `ConfigurationError`: make the client and the queue again.
    """
    _process.after_restore()


@cache
def host() -> bytes:
    """Return four bytes for the place in which process ids are unique: this boot of this machine, or this container."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # without /proc, the host name alone has to do
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("|".join(parts).encode()).digest()[:4]


def slot_name() -> bytes:
    """Return fifteen bytes: the host, the process, and random bytes that no other slot has."""
    return host() + os.getpid().to_bytes(4, "big") + os.urandom(7)


def is_of_this_host(slot_name: bytes) -> bool:
    """Return whether the slot's process runs, or ran, on this host."""
    return slot_name[:4] == host()


def is_of_this_process(slot_name: bytes) -> bool:
    """Return whether the slot belongs to this process."""
    return slot_name[:8] == host() + os.getpid().to_bytes(4, "big")


def consumer_name(slot_name: bytes) -> str:
    """Return the name of the process that a slot belongs to: its host and its process id.

    A slot knows its host by four bytes only. On this host the name is shown, for other hosts these bytes are.
    """
    where = socket.gethostname() if is_of_this_host(slot_name) else f"host-{slot_name[:4].hex()}"
    return f"{where}:{int.from_bytes(slot_name[4:8], 'big')}"


def labelled(label: str | None, slot_name: bytes) -> str:
    """Return the name of a slot's process, after the label that its queue has."""
    name = consumer_name(slot_name)
    return name if label is None else f"{label}@{name}"


def is_gone(slot_name: bytes) -> bool:
    """Return whether the slot's process ran on this host and has ended."""
    if not is_of_this_host(slot_name):
        return False
    try:
        os.kill(int.from_bytes(slot_name[4:8], "big"), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # another user's process, or no process id at all
        return False
    return False
