"""Supervises worker processes: starts and restarts them, reports when they are ready, and stops them."""

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from redis_message_queue import RunSummary
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import say
from redis_message_queue.cli.stop_signals import StopSignals
from redis_message_queue.cli.worker.command import WorkerSettings

_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.5, 30.0
_HEALTHY_SECONDS = 60.0  # a process that ran this long is restarted after the first delay again
_TERMINATION_SECONDS = 5.0  # between the second stop signal and SIGKILL
_CHECK_SECONDS = 1.0  # a process that died without closing its pipe is noticed after this


@dataclass(slots=True, eq=False)
class Child:
    """One worker process."""

    number: int
    process: subprocess.Popen[bytes]
    settings: IO[bytes]
    reports: IO[bytes]
    started: float = field(default_factory=time.monotonic)
    ready: bool = False
    finished: bool = False  # its loop has ended without an error
    unread: bytes = b""

    @classmethod
    def start(cls, number: int, settings: WorkerSettings, *, stdout: int | None) -> Child:
        """Start an interpreter in its own process group, so that Ctrl-C in the terminal reaches only the supervisor."""
        settings_out, settings_in = os.pipe()
        reports_out, reports_in = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.process", str(settings_out), str(reports_in)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                pass_fds=(settings_out, reports_in),
                process_group=0,
            )
        finally:
            os.close(settings_out)
            os.close(reports_in)
        os.set_blocking(reports_out, False)
        pipe = open(settings_in, "wb", buffering=0)  # noqa: SIM115  open as long as the child may live
        with contextlib.suppress(BrokenPipeError):
            pipe.write(settings.to_json().encode() + b"\n")
        return cls(number, process, pipe, open(reports_out, "rb", buffering=0))

    def close(self) -> None:
        for pipe in (self.settings, self.reports):
            with contextlib.suppress(OSError):
                pipe.close()


class Supervisor:
    """Keeps a number of processes running until a signal comes, or until there is nothing left to do."""

    def __init__(
        self,
        settings: WorkerSettings,
        processes: int,
        stop: StopSignals,
        *,
        ready_file: Path | None,
        grace_seconds: float | None,
        stdout: int | None,
    ) -> None:
        self._settings, self._processes, self._stop = settings, processes, stop
        self._ready_file, self._grace_seconds, self._stdout = ready_file, grace_seconds, stdout
        self._children: dict[int, Child] = {}
        self._start_at: dict[int, float] = {}  # when to start, or restart, each number
        self._crashes: Counter[int] = Counter()  # in a row
        self._stopped_at: float | None = None
        self._abandoned_at: float | None = None
        self._bad_exits = 0
        self._mistake: tuple[str, ExitStatus] | None = None
        self._selector = selectors.DefaultSelector()
        self.summary: Counter[str] = Counter(asdict(RunSummary()))

    def run(self) -> ExitStatus:
        """Run until all processes have ended, and return the exit status."""
        self._start_at = dict.fromkeys(range(1, self._processes + 1), 0.0)
        try:
            with self._wake_on_signals():
                while self._start_at or self._children:
                    self._start_children()
                    self._wait()
                    self._reap_children()
                    self._update_ready_file()
                    self._handle_signals()
        finally:
            self._kill_children()
        if self._mistake is not None:
            say(f"rmq worker: {self._mistake[0]}")
            return self._mistake[1]
        if self._abandoned_at is not None:
            return self._stop.status
        # A batch that fails is requeued, and counts as failed only when its messages were delivered too often.
        failed = self._settings.run["until_empty"] and (self.summary["failed"] or self.summary["dead_lettered"])
        return ExitStatus.FAILED if self._bad_exits or failed else ExitStatus.OK

    def _start_children(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._start_at.items() if due <= now]:
            del self._start_at[number]
            child = self._children[number] = Child.start(number, self._settings, stdout=self._stdout)
            self._selector.register(child.reports, selectors.EVENT_READ, child)

    @contextlib.contextmanager
    def _wake_on_signals(self) -> Iterator[None]:
        """Let a signal write a byte into a pipe that we wait for, so that it ends the wait at once."""
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
        soonest = min((due - now for due in self._start_at.values()), default=_CHECK_SECONDS)
        for key, _ in self._selector.select(min(max(soonest, 0.0), _CHECK_SECONDS)):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
            else:
                self._read_reports(key.data)

    def _read_reports(self, child: Child) -> None:
        try:
            chunk = child.reports.read(65_536)
        except OSError:
            chunk = b""
        if chunk is None:
            return
        if not chunk:  # it has closed its end, and is about to exit
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.reports)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(_CHECK_SECONDS)
            return
        *lines, child.unread = (child.unread + chunk).split(b"\n")
        for line in lines:
            self._handle_report(child, json.loads(line))

    def _handle_report(self, child: Child, report: dict[str, Any]) -> None:
        if "ready" in report:
            child.ready = True
        elif "summary" in report:
            child.finished = True
            self.summary.update(report["summary"])
        elif report["status"] == ExitStatus.USAGE:
            self._mistake = (report["error"], ExitStatus.USAGE)
        else:
            say(f"process {child.number}: {report['error']}")

    def _reap_children(self) -> None:
        for child in [child for child in self._children.values() if child.process.poll() is not None]:
            if not child.reports.closed and child.reports in self._selector.get_map():
                self._read_reports(child)  # the last ones
                with contextlib.suppress(KeyError):
                    self._selector.unregister(child.reports)
            child.close()
            del self._children[child.number]
            self._handle_exit(child)

    def _handle_exit(self, child: Child) -> None:
        """Restart a process that was not told to end, after a growing delay."""
        status = child.process.returncode
        if self._stopped_at is not None or self._mistake is not None:
            # SIGTERM kills a process that is not ready yet, but such a process has no message.
            self._bad_exits += status != 0 and not (status == -signal.SIGTERM and not child.ready)
            return
        if child.finished and status == 0 and self._settings.run["until_empty"]:
            return
        if time.monotonic() - child.started >= _HEALTHY_SECONDS:
            self._crashes[child.number] = 0
        delay = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** min(self._crashes[child.number], 10))
        self._crashes[child.number] += 1
        self._start_at[child.number] = time.monotonic() + delay
        say(f"process {child.number} exited with status {status}; restarting it in {delay:g} s")

    def _update_ready_file(self) -> None:
        """Keep the file while all processes are running."""
        if self._ready_file is None:
            return
        children = list(self._children.values())
        all_ready = len(children) == self._processes and all(child.ready for child in children)
        if all_ready and self._stopped_at is None:
            if not self._ready_file.exists():
                made = self._ready_file.with_name(f".{self._ready_file.name}.{os.getpid()}")
                made.write_text(f"{os.getpid()}\n")
                made.replace(self._ready_file)
        else:
            self._ready_file.unlink(missing_ok=True)

    def _handle_signals(self) -> None:
        """Stop, then abandon the handlers, then kill; a wrong option that a child has reported is a stop too."""
        now, times = time.monotonic(), self._stop.times
        if (times or self._mistake) and self._stopped_at is None:
            self._stopped_at = now
            self._start_at.clear()
            self._signal(signal.SIGTERM)
            if times and self._children:
                say("stopping when the running handlers have finished; send the signal again to stop now")
        late = (
            self._grace_seconds is not None
            and self._stopped_at is not None
            and now - self._stopped_at >= self._grace_seconds
        )
        if (times > 1 or late) and self._abandoned_at is None and self._children:
            self._abandoned_at = now
            self._signal(signal.SIGTERM)
        if self._abandoned_at is not None and (times > 2 or now - self._abandoned_at >= _TERMINATION_SECONDS):
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children.values():
            child.process.send_signal(number)

    def _kill_children(self) -> None:
        """Leave nothing running, however the supervisor ends."""
        self._signal(signal.SIGKILL)
        for child in self._children.values():
            child.process.wait()
            child.close()
        self._selector.close()
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
