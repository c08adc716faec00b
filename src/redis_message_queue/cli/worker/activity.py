"""Reports to the supervisor, once a second, what the handlers and loops of a worker process are doing."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis_message_queue.protocol.loop.run_options import counts_of

REPORT_SECONDS = 1.0
_PING_SECONDS = 1.0  # with what an idle consumer sends, two commands a second
# From a handler that only counts to one that takes an hour.
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)


class Activity:
    """The handlers that run now, and how long those took that have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[object, tuple[str, float]] = {}
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def handling(self, queue: str) -> Iterator[None]:
        """A block in which a handler runs."""
        one, began = object(), time.monotonic()
        with self._lock:
            self._running[one] = (queue, began)
        try:
            yield
        finally:
            took = time.monotonic() - began
            with self._lock:
                del self._running[one]
                counts = self._buckets.setdefault(queue, [0] * (len(DURATION_BUCKETS) + 1))
                counts[bisect_left(DURATION_BUCKETS, took)] += 1
                self._seconds[queue] = self._seconds.get(queue, 0.0) + took

    def to_dict(self) -> dict[str, Any]:
        now = time.monotonic()
        with self._lock:
            running = list(self._running.values())
            return {
                "running": Counter(queue for queue, _ in running),
                "longest_seconds": max((now - began for _, began in running), default=0.0),
                "buckets": {queue: list(counts) for queue, counts in self._buckets.items()},
                "seconds": dict(self._seconds),
            }


class LoopWatch:
    """Notices whether a loop turns: a loop asks before each claim, and while it waits, whether it should stop."""

    def __init__(self, protocol: Any) -> None:
        self._ask = protocol.is_stopped
        protocol.is_stopped = self._is_stopped
        self._turns = self._seen = 0
        self._turned_at = time.monotonic()

    def _is_stopped(self) -> bool:
        self._turns += 1
        stopped: bool = self._ask()
        return stopped

    def age(self) -> float:
        """How long ago the loop turned, as far as this was called often."""
        now = time.monotonic()
        if self._turns != self._seen:
            self._seen, self._turned_at = self._turns, now
        return now - self._turned_at


class Contact:
    """Asks Redis every second whether it is there, in a thread of its own."""

    def __init__(self, ping: Callable[[], Any]) -> None:
        self._ping = ping
        self._seen_at = time.monotonic()  # the process has opened its queues just now
        self.is_lost = False  # whether the last question had no answer
        threading.Thread(target=self._run, name="rmq-worker-contact", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self._ping()
            except Exception:  # the loops report what is wrong; here it only counts that it is
                self.is_lost = True
            else:
                self._seen_at, self.is_lost = time.monotonic(), False
            time.sleep(_PING_SECONDS)

    def age(self) -> float:
        return time.monotonic() - self._seen_at


class Reporter:
    """Tells the supervisor once a second what this process has done so far, and how it is."""

    def __init__(
        self,
        report: Callable[..., None],
        *,
        summaries: Callable[[], dict[str, Any]],
        activity: Activity,
        loops: Sequence[LoopWatch],
        contact: Contact | None,
        with_files: bool,
    ) -> None:
        self._report, self._summaries, self._activity = report, summaries, activity
        self._loops, self._contact, self._with_files = loops, contact, with_files
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-worker-reports", daemon=True)

    def __enter__(self) -> Reporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.tell()  # the last numbers, also if an error ends the process

    def _run(self) -> None:
        while not self._ended.wait(REPORT_SECONDS):
            self.tell()

    def tell(self) -> None:
        facts = {
            "summaries": {queue: counts_of(one) for queue, one in self._summaries().items()},
            "activity": self._activity.to_dict(),
            "loops_age": max((loop.age() for loop in self._loops), default=0.0),
            "redis_age": None if self._contact is None else self._contact.age(),
            "redis_lost": self._contact is not None and self._contact.is_lost,
        }
        if self._with_files:
            facts["files"] = own_files()
        self._report(**facts)


def own_files() -> list[str]:
    """Return the files of the modules that are loaded and do not belong to Python or to installed packages."""
    installed = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    paths = {os.path.realpath(path) for path in found if path}
    return sorted(path for path in paths if not any(path.startswith(f"{place}{os.sep}") for place in installed))
