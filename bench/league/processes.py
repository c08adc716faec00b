"""The processes of a member of the league: one that publishes, and its ordinary worker."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.contender import ROOT, ContenderFailed, RequestProcess
from bench.league.handler import ENDED
from bench.league.members import Member

# A worker that has not handled a message within this time has lost it, or cannot start.
_HANDLE_SECONDS = 60.0


@dataclass
class Site:
    """Where the processes of a member find each other: a server, and a file that the handlers write to."""

    member: Member
    bin: Path
    url: str
    log: Path
    pause_seconds: float = 0.0
    lease_seconds: int = 0
    batch: int = 1
    concurrency: int = 0  # 0: as many as the member's worker has by itself
    cpus: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))

    def start(self, command: list[str], **options: Any) -> "subprocess.Popen[str]":
        """A process in a group of its own, on the CPUs of this site."""
        # The members find this package by the path; their own packages are those of their environment.
        settings = {
            "PYTHONPATH": str(ROOT),
            "LEAGUE_URL": self.url,
            "LEAGUE_LOG": str(self.log),
            "LEAGUE_PAUSE": str(self.pause_seconds),
            "LEAGUE_LEASE": str(self.lease_seconds),
            "LEAGUE_BATCH": str(self.batch),
            "LEAGUE_CONCURRENCY": str(self.concurrency),
        }
        # A process inherits the CPUs of the thread that starts it, so a pin holds for all of its threads.
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cpus)
        try:
            return subprocess.Popen(
                command, cwd=ROOT, env=os.environ | settings, text=True, start_new_session=True, **options
            )
        finally:
            os.sched_setaffinity(0, before)


class Producer(RequestProcess):
    """The process that publishes."""

    def __init__(self, site: Site) -> None:
        command = [f"{site.bin}/python", "-m", "bench.league.producer", site.member.adapter]
        super().__init__(site.member.name, lambda **pipes: site.start(command, **pipes))


class Worker:
    """The ordinary worker of a member: a group of processes that can be stopped, killed and started again."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.starts = 0
        self.log = Log(site.log)
        self._output = Path(f"{site.log}.worker")
        self._start()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.log.close()

    def _start(self) -> None:
        site = self._site
        places = {"bin": site.bin, "url": site.url, "concurrency": site.concurrency}
        words = (*site.member.worker, *((site.member.crowd or ()) if site.concurrency else ()))
        command = [word.format(**places) for word in words]
        with self._output.open("ab") as output:
            self._process = self._site.start(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.starts += 1

    def kill(self) -> None:
        """End the whole group at once, as a machine that loses its power does."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._start()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def supervise(self) -> bool:
        """Start the worker again if it has ended by itself, as a supervisor would. Returns whether that was so."""
        if not self.has_ended():
            return False
        self.restart()
        return True

    @contextmanager
    def stopped(self) -> Iterator[None]:
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGCONT)

    @contextmanager
    def continued(self) -> Iterator[None]:
        """A moment in which a stopped worker runs."""
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGSTOP)

    def cpu_seconds(self) -> float:
        """The CPU time of the group, with the children that have ended."""
        leader = psutil.Process(self._process.pid)
        total = 0.0
        for process in (leader, *leader.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, OSError):
                ended = process.cpu_times()
                total += ended.children_user + ended.children_system + _cpu_clock(process.pid)
        return total

    def wait_for(self, handled: int) -> list[tuple[str, int]]:
        """Wait until so many handlers have ended. Returns the numbers and times of those that are new."""
        until = time.monotonic() + _HANDLE_SECONDS
        found: list[tuple[str, int]] = []
        while len(found) < handled:
            found += [(number, at) for what, number, at in self.log.new() if what == ENDED]
            if self.has_ended() or time.monotonic() > until:
                raise ContenderFailed(f"{len(found)} of {handled} messages were handled; {self.last_words()}")
            time.sleep(0.002)
        return found

    def last_words(self) -> str:
        lines = self._output.read_text(errors="replace").strip().splitlines()
        return f"the worker said: {lines[-1][:200]}" if lines else "the worker said nothing"


class Log:
    """The lines that handlers wrote, read as they come."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""

    def close(self) -> None:
        self._file.close()

    def new(self) -> list[tuple[str, str, int]]:
        """What happened, to which message, and when, in nanoseconds of the monotonic clock."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [(what.decode(), number.decode(), int(at)) for what, number, at in (line.split() for line in lines)]


def _cpu_clock(pid: int) -> float:
    """The CPU time of a running process with all its threads: the clock that clock_getcpuclockid(3) names."""
    return time.clock_gettime((~pid << 3) | 2)


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < until:
        time.sleep(0.02)
    return held
