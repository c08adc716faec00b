"""Supervises worker processes: starts and restarts them, reports when they are ready, and stops them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import typer

from redis_message_queue import RunSummary
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.log_format import say_in
from redis_message_queue.cli.stop_signals import StopSignals
from redis_message_queue.cli.worker.health import BAD_OUTCOMES, Health, HealthServer, ProcessHealth
from redis_message_queue.cli.worker.reload import CHECK_SECONDS as _RELOAD_SECONDS
from redis_message_queue.cli.worker.reload import FileWatch
from redis_message_queue.cli.worker.worker_options import ProcessOptions, WatchOptions, WorkerSettings
from redis_message_queue.protocol.loop.run_options import counts_of
from redis_message_queue.version import __version__

_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.5, 30.0
_HEALTHY_SECONDS = 60.0  # a process that ran this long is restarted after the first delay again
_TERMINATION_SECONDS = 5.0  # between the second stop signal and SIGKILL
_HURRY_SECONDS = 0.5  # until it is sent again: two signals that arrive together count as one
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
    reloading: bool = False  # it was told to end because its code has changed
    has_mistake: bool = False  # its code cannot be used: an edit may mend it
    unread: bytes = b""
    heard_at: float = field(default_factory=time.monotonic)  # when its last report came
    facts: dict[str, Any] = field(default_factory=dict)  # what it reported last

    def health(self, now: float) -> ProcessHealth:
        """How it is now. A process that says nothing any more grows old."""
        silent, activity = now - self.heard_at, self.facts.get("activity", {})
        is_busy = bool(activity.get("running"))  # then its loop may be inside a handler, for as long as that takes
        return ProcessHealth(
            number=self.number,
            pid=self.process.pid,
            ready=self.ready,
            loops_age_seconds=silent + (0.0 if is_busy else self.facts.get("loops_age", 0.0)),
            redis_age_seconds=silent + (self.facts.get("redis_age") or 0.0),
            redis_lost=self.facts.get("redis_lost", False),
            activity=activity,
        )

    @classmethod
    def start(cls, number: int, settings: WorkerSettings, *, stdout: int | None) -> Child:
        """Start an interpreter in its own process group, so that Ctrl-C in the terminal reaches only the supervisor."""
        settings_out, settings_in = os.pipe()
        reports_out, reports_in = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker_process", str(settings_out), str(reports_in)],
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
        process: ProcessOptions,
        watch: WatchOptions,
        stop: StopSignals,
        *,
        quiet: bool,
    ) -> None:
        self._settings = replace(settings, supervisor_pid=os.getpid())
        self._processes, self._grace_seconds, self._stop = process.processes, process.grace_seconds, stop
        self._ready_file = None if settings.ready_file is None else Path(settings.ready_file)
        self._stdout = sys.stderr.fileno() if quiet else None
        self._waits, self._was_ready = process.wait, False  # for a server; whether any process has reached it
        self._children: dict[int, Child] = {}
        self._start_at: dict[int, float] = {}  # when to start, or restart, each number
        self._crashes: Counter[int] = Counter()  # in a row
        self._restarts = 0
        self._stopped_at: float | None = None
        self._abandoned_at: float | None = None
        self._hurried_at = 0.0
        self._bad_exits = 0
        self._mistake: tuple[str, ExitStatus] | None = None
        self._files = FileWatch() if settings.reload else None
        self._is_announced = settings.run["until_empty"] or quiet  # whether the banner was printed, or is not wanted
        self._turned_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._sums = threading.Lock()  # no scrape sees a process neither running nor ended
        self._ended: dict[str, Counter[str]] = {one.name: _nothing() for one in settings.queues}
        self._ended_handlers: dict[str, Any] = {"buckets": {}, "seconds": {}}
        self._health_at, self._health_seconds = watch.health_at, watch.health_seconds
        self._health: HealthServer | None = None

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """The messages of each queue by how they ended, as far as the processes could report it."""
        with self._sums:
            totals = {queue: Counter(counts) for queue, counts in self._ended.items()}
            for child in self._children.values():
                for queue, counts in child.facts.get("summaries", {}).items():
                    _add(totals.setdefault(queue, _nothing()), counts)
        return {queue: dict(counts) for queue, counts in totals.items()} or {"": dict(_nothing())}

    def run(self) -> ExitStatus:
        """Run until all processes have ended, and return the exit status."""
        self._start_at = dict.fromkeys(range(1, self._processes + 1), 0.0)
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)  # of a supervisor that was killed with all of its processes
        try:
            self._serve_health()
            with self._wake_on_signals():
                while self._start_at or self._children or self._is_waiting_for_a_change():
                    self._turned_at = time.monotonic()
                    self._start_children()
                    self._wait()
                    self._reap_children()
                    self._update_ready_file()
                    self._announce()
                    self._restart_changed()
                    self._handle_signals()
        finally:
            self._kill_children()
            if self._health is not None:
                self._health.close()
        if self._mistake is not None:
            self._say(f"rmq worker: {self._mistake[0]}", "error")
            return self._mistake[1]
        if self._restarts:
            text = "a process that crashes cannot report its last second: the totals may be too small"
            self._say(f"{text}, and messages that it was handling come again when their leases end", "warning")
        if self._abandoned_at is not None:
            return self._stop.status
        in_all = Counter[str]()
        for counts in self.totals.values():
            in_all.update(counts)
        # The messages of a process that ended in a handler are still in flight, whatever the next one has found.
        incomplete = any(in_all[name] for name in BAD_OUTCOMES) or self._restarts
        failed = self._settings.run["until_empty"] and incomplete
        return ExitStatus.FAILED if self._bad_exits or failed else ExitStatus.OK

    def _say(self, text: str, level: str) -> None:
        say_in(self._settings.log_format, text, level=level, address=self._settings.address)

    def _serve_health(self) -> None:
        if self._health_at is None:
            return
        try:
            self._health = HealthServer(*self._health_at, self.health, self._health_seconds)
        except OSError as error:
            host, port = self._health_at
            raise typer.BadParameter(
                f"cannot listen at {host}:{port}: {error.strerror}", param_hint="--health-port"
            ) from None

    def health(self) -> Health:
        """How the worker is at this moment; for other threads too."""
        now = time.monotonic()
        return Health(
            wanted_processes=self._processes,
            processes=[child.health(now) for child in list(self._children.values())],
            stopping=self._stopped_at is not None,
            supervisor_age_seconds=now - self._turned_at,
            restarts=self._restarts,
            totals={queue: Counter(counts) for queue, counts in self.totals.items()},
            ended=self._ended_handlers,
        )

    def _announce(self) -> None:
        """Print the banner when all processes are ready for the first time."""
        if self._is_announced or not self._all_ready():
            return
        self._is_announced = True
        served, address = self._settings.served(list(self._ended)), self._settings.address
        processes = "1 process" if self._processes == 1 else f"{self._processes} processes"
        handlers = self._settings.run["concurrency"]
        text = f"rmq worker {__version__}: {served} at {address} in {processes}"
        text += f" with {handlers} handler{'s' if handlers > 1 else ''}{' each' if self._processes > 1 else ''}"
        if self._health is not None:
            text += f"; health at {self._health.url}"
        self._say(f"{text}; Ctrl-C stops it", "info")

    def _all_ready(self) -> bool:
        children = list(self._children.values())
        return len(children) == self._processes and all(child.ready for child in children)

    # -- reloading

    def _is_waiting_for_a_change(self) -> bool:
        """Whether the code has a mistake that an edit may mend."""
        return self._files is not None and self._stopped_at is None and self._mistake is None

    def _restart_changed(self) -> None:
        if self._files is None or self._stopped_at is not None or (path := self._files.changed()) is None:
            return
        self._say(f"{os.path.relpath(path)} has changed; restarting", "info")
        for number in range(1, self._processes + 1):
            if (child := self._children.get(number)) is None:
                self._start_at[number] = 0.0
            else:
                child.reloading = True
                child.process.send_signal(signal.SIGTERM)

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
        longest = _CHECK_SECONDS if self._files is None else _RELOAD_SECONDS
        soonest = min((due - now for due in self._start_at.values()), default=longest)
        for key, _ in self._selector.select(min(max(soonest, 0.0), longest)):
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
        child.heard_at = time.monotonic()
        if self._files is not None:
            self._files.add(report.get("files", ()))
        if "ready" in report:
            child.ready = self._was_ready = True
            for name in report["queues"]:
                self._ended.setdefault(name, _nothing())
            self._settings = replace(self._settings, address=report["address"])
        elif "summaries" in report:
            child.facts = report
        elif "finished" in report:
            child.finished = True
        elif report["status"] == ExitStatus.USAGE and not (self._files is not None and self._is_announced):
            self._mistake = (report["error"], ExitStatus.USAGE)
        elif report["status"] == ExitStatus.SERVER and not self._was_ready and (report["final"] or not self._waits):
            self._mistake = (report["error"], ExitStatus.SERVER)
        else:
            child.has_mistake = report["status"] == ExitStatus.USAGE
            self._say(f"process {child.number}: {report['error']}", "error")
            if child.has_mistake and not child.reloading:
                self._say("waiting until the file is changed", "info")

    def _reap_children(self) -> None:
        for child in [child for child in self._children.values() if child.process.poll() is not None]:
            if not child.reports.closed and child.reports in self._selector.get_map():
                self._read_reports(child)  # the last ones
                with contextlib.suppress(KeyError):
                    self._selector.unregister(child.reports)
            child.close()
            self._keep_facts(child)
            self._handle_exit(child)

    def _keep_facts(self, child: Child) -> None:
        """Add what a process has done to what was done before it."""
        with self._sums:
            del self._children[child.number]
            for queue, counts in child.facts.get("summaries", {}).items():
                _add(self._ended.setdefault(queue, _nothing()), counts)
        activity, ended = child.facts.get("activity", {}), self._ended_handlers
        for queue, counts in activity.get("buckets", {}).items():
            before = ended["buckets"].get(queue, [0] * len(counts))
            ended["buckets"][queue] = [one + other for one, other in zip(before, counts, strict=True)]
        for queue, seconds in activity.get("seconds", {}).items():
            ended["seconds"][queue] = ended["seconds"].get(queue, 0.0) + seconds

    def _handle_exit(self, child: Child) -> None:
        """Restart a process that was not told to end, after a growing delay."""
        status = child.process.returncode
        if self._stopped_at is not None or self._mistake is not None:
            # SIGTERM kills a process that is not ready yet, but such a process has no message.
            self._bad_exits += status != 0 and not (status == -signal.SIGTERM and not child.ready)
            return
        if child.finished and status == 0 and self._settings.run["until_empty"]:
            return
        if child.reloading:
            self._start_at[child.number] = 0.0
            return
        if child.has_mistake:
            return  # until the next change
        if time.monotonic() - child.started >= _HEALTHY_SECONDS:
            self._crashes[child.number] = 0
        delay = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** min(self._crashes[child.number], 10))
        self._crashes[child.number] += 1
        self._restarts += 1
        self._start_at[child.number] = time.monotonic() + delay
        self._say(f"process {child.number} exited with status {status}; restarting it in {delay:g} s", "warning")

    def _update_ready_file(self) -> None:
        """Keep the file while all processes are running and reach Redis."""
        if self._ready_file is None:
            return
        if not self.health().is_ready:
            self._ready_file.unlink(missing_ok=True)
        elif not self._ready_file.exists():
            made = self._ready_file.with_name(f".{self._ready_file.name}.{os.getpid()}")
            made.write_text(f"{os.getpid()}\n")
            made.replace(self._ready_file)

    def _handle_signals(self) -> None:
        """Stop, then abandon the handlers, then kill; a wrong option that a child has reported is a stop too."""
        now, times = time.monotonic(), self._stop.times
        if (times or self._mistake) and self._stopped_at is None:
            self._stopped_at = now
            self._start_at.clear()
            self._signal(signal.SIGTERM)
            if times and self._children:
                self._say("stopping when the running handlers have finished; send the signal again to stop now", "info")
        late = (
            self._grace_seconds is not None
            and self._stopped_at is not None
            and now - self._stopped_at >= self._grace_seconds
        )
        if (times > 1 or late) and self._abandoned_at is None and self._children:
            self._abandoned_at = self._hurried_at = now
            self._signal(signal.SIGTERM)
        if self._abandoned_at is not None and (times > 2 or now - self._abandoned_at >= _TERMINATION_SECONDS):
            self._signal(signal.SIGKILL)
        elif self._abandoned_at is not None and now - self._hurried_at >= _HURRY_SECONDS:
            self._hurried_at = now
            self._signal(signal.SIGTERM)

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


def _add(total: Counter[str], counts: dict[str, int]) -> None:
    """Add what another process has done. All of them see the same messages behind a retry: the last one counts."""
    total.update(counts)
    total["left_behind"] = counts["left_behind"]


def _nothing() -> Counter[str]:
    return Counter(counts_of(RunSummary()))
