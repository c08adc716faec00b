"""Looks after worker processes: starts them, starts them again, tells when they are ready, and stops them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import say
from redis_message_queue.cli.stopping import StopSignals
from redis_message_queue.cli.worker.task import Task

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_HEALTHY_SECONDS = 60.0  # whoever has lived so long starts again at once
_LAST_SECONDS = 5.0  # between a second stop signal and SIGKILL
_LOOK_SECONDS = 1.0  # a death that no pipe has told of is seen then


@dataclass(slots=True, eq=False)
class Child:
    """One worker process, as long as it lives."""

    number: int
    process: subprocess.Popen[bytes]
    orders: IO[bytes]
    news: IO[bytes]
    started: float = field(default_factory=time.monotonic)
    ready: bool = False
    finished: bool = False  # its loop has ended as it should
    unread: bytes = b""

    def close(self) -> None:
        for pipe in (self.orders, self.news):
            with contextlib.suppress(OSError):
                pipe.close()


def start(number: int, task: Task, *, stdout: int | None) -> Child:
    """A fresh interpreter in a process group of its own: the terminal's Ctrl-C is for the supervisor."""
    orders_out, orders_in = os.pipe()
    news_out, news_in = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.process", str(orders_out), str(news_in)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            pass_fds=(orders_out, news_in),
            process_group=0,
        )
    finally:
        os.close(orders_out)
        os.close(news_in)
    os.set_blocking(news_out, False)
    orders = open(orders_in, "wb", buffering=0)  # noqa: SIM115  open as long as the child may live
    with contextlib.suppress(BrokenPipeError):
        orders.write(task.to_json().encode() + b"\n")
    return Child(number, process, orders, open(news_out, "rb", buffering=0))


class Supervisor:
    """Keeps so many processes at work until a signal comes, or until there is nothing more to do."""

    def __init__(
        self,
        task: Task,
        processes: int,
        stop: StopSignals,
        *,
        ready_file: Path | None,
        grace_seconds: float | None,
        stdout: int | None,
    ) -> None:
        self._task, self._processes, self._stop = task, processes, stop
        self._ready_file, self._grace_seconds, self._stdout = ready_file, grace_seconds, stdout
        self._children: dict[int, Child] = {}
        self._due: dict[int, float] = {}  # when a number starts, or starts again
        self._crashes: Counter[int] = Counter()  # in a row
        self._stopped_at: float | None = None
        self._hurried_at: float | None = None
        self._bad_ends = 0
        self._mistake: tuple[str, ExitStatus] | None = None
        self._selector = selectors.DefaultSelector()
        self.summary: Counter[str] = Counter(handled=0, failed=0, given_back=0)

    def run(self) -> ExitStatus:
        """Until all have ended; what a script should make of it."""
        self._due = dict.fromkeys(range(1, self._processes + 1), 0.0)
        try:
            with self._woken_by_signals():
                while self._due or self._children:
                    self._start_those_due()
                    self._wait()
                    self._bury()
                    self._note_readiness()
                    self._obey()
        finally:
            self._end_all()
        return self._status()

    def _status(self) -> ExitStatus:
        if self._mistake is not None:
            say(f"rmq worker: {self._mistake[0]}")
            return self._mistake[1]
        if self._hurried_at is not None:
            return self._stop.status
        failed = self._task.run["until_empty"] and self.summary["failed"]
        return ExitStatus.NO if self._bad_ends or failed else ExitStatus.OK

    # -- living

    def _start_those_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            child = self._children[number] = start(number, self._task, stdout=self._stdout)
            self._selector.register(child.news, selectors.EVENT_READ, child)

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        """A signal is a byte in a pipe, so that waiting ends at once."""
        out, into = os.pipe()
        os.set_blocking(out, False)
        os.set_blocking(into, False)
        former = signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        self._selector.register(out, selectors.EVENT_READ)
        try:
            yield
        finally:
            signal.set_wakeup_fd(former)
            self._selector.unregister(out)
            os.close(out)
            os.close(into)

    def _wait(self) -> None:
        now = time.monotonic()
        soonest = min((due - now for due in self._due.values()), default=_LOOK_SECONDS)
        for key, _ in self._selector.select(min(max(soonest, 0.0), _LOOK_SECONDS)):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
            else:
                self._hear(key.data)

    def _hear(self, child: Child) -> None:
        try:
            chunk = child.news.read(65_536)
        except OSError:
            chunk = b""
        if chunk is None:
            return
        if not chunk:  # it has closed its end; its status follows
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.news)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(_LOOK_SECONDS)
            return
        *lines, child.unread = (child.unread + chunk).split(b"\n")
        for line in lines:
            self._note(child, json.loads(line))

    def _note(self, child: Child, news: dict[str, Any]) -> None:
        if "ready" in news:
            child.ready = True
        elif "summary" in news:
            child.finished = True
            self.summary.update(news["summary"])
        elif news["status"] == ExitStatus.USAGE:
            self._mistake = (news["error"], ExitStatus.USAGE)
        else:
            say(f"process {child.number}: {news['error']}")

    def _bury(self) -> None:
        for child in [child for child in self._children.values() if child.process.poll() is not None]:
            if not child.news.closed and child.news in self._selector.get_map():
                self._hear(child)  # its last words
                with contextlib.suppress(KeyError):
                    self._selector.unregister(child.news)
            child.close()
            del self._children[child.number]
            self._decide_after(child)

    def _decide_after(self, child: Child) -> None:
        """Whoever ended unasked is started again, later each time."""
        status = child.process.returncode
        if self._stopped_at is not None or self._mistake is not None:
            # SIGTERM before it was ready meets no handler, and it held nothing.
            self._bad_ends += status != 0 and not (status == -signal.SIGTERM and not child.ready)
            return
        if child.finished and status == 0 and self._task.run["until_empty"]:
            return
        if time.monotonic() - child.started >= _HEALTHY_SECONDS:
            self._crashes[child.number] = 0
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(self._crashes[child.number], 10))
        self._crashes[child.number] += 1
        self._due[child.number] = time.monotonic() + pause
        say(f"process {child.number} ended with status {status}; it starts again in {pause:g} s")

    def _note_readiness(self) -> None:
        """The file is there while all processes are at work."""
        if self._ready_file is None:
            return
        children = list(self._children.values())
        at_work = len(children) == self._processes and all(child.ready for child in children)
        if at_work and self._stopped_at is None:
            if not self._ready_file.exists():
                made = self._ready_file.with_name(f".{self._ready_file.name}.{os.getpid()}")
                made.write_text(f"{os.getpid()}\n")
                made.replace(self._ready_file)
        else:
            self._ready_file.unlink(missing_ok=True)

    # -- dying

    def _obey(self) -> None:
        """First a stop, then a hurry, then the end; a wrong option that a child has found is a stop too."""
        now, times = time.monotonic(), self._stop.times
        if (times or self._mistake) and self._stopped_at is None:
            self._stopped_at = now
            self._due.clear()
            self._signal(signal.SIGTERM)
            if times and self._children:
                say("stopping: what has begun is finished; the same signal again does not wait for that")
        impatient = self._grace_seconds is not None and self._stopped_at is not None
        late = impatient and now - (self._stopped_at or now) >= (self._grace_seconds or 0.0)
        if (times > 1 or late) and self._hurried_at is None and self._children:
            self._hurried_at = now
            self._signal(signal.SIGTERM)
        if self._hurried_at is not None and (times > 2 or now - self._hurried_at >= _LAST_SECONDS):
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children.values():
            child.process.send_signal(number)

    def _end_all(self) -> None:
        """However we end, nothing is left running."""
        self._signal(signal.SIGKILL)
        for child in self._children.values():
            child.process.wait()
            child.close()
        self._selector.close()
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
