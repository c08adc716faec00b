"""Answers /healthz, /readyz and /metrics for a worker, from what its processes report to the supervisor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from redis_message_queue.cli.page_server import METRICS_TYPE, PageServer
from redis_message_queue.cli.worker.activity import DURATION_BUCKETS

READY_SECONDS = 10.0  # a worker is not ready if a process hangs, or has not reached Redis, for longer than this


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHealth:
    """One process, as it was last heard of; the ages have grown since then."""

    number: int
    pid: int
    ready: bool
    loops_age_seconds: float
    redis_age_seconds: float
    redis_lost: bool  # whether its last question had no answer
    activity: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "process": self.number,
            "pid": self.pid,
            "ready": self.ready,
            "loops_turned_seconds_ago": round(self.loops_age_seconds, 1),
            "redis_reachable": not self.redis_lost,
            "redis_seen_seconds_ago": round(self.redis_age_seconds, 1),
            "handlers": sum(self.activity.get("running", {}).values()),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The whole worker at one moment."""

    wanted_processes: int
    processes: list[ProcessHealth]
    stopping: bool
    supervisor_age_seconds: float  # since the supervisor's own loop turned
    restarts: int
    totals: dict[str, Counter[str]]  # by queue
    ended: dict[str, Any]  # handlers of processes that have ended: buckets and seconds by queue

    @property
    def is_ready(self) -> bool:
        """Whether all processes run and have just reached Redis, and nobody stops them."""
        running = [one for one in self.processes if one.ready and not one.redis_lost]
        fresh = all(one.redis_age_seconds <= READY_SECONDS for one in running)
        return len(running) == self.wanted_processes and fresh and not self.stopping

    def troubles(self, limit_seconds: float) -> list[str]:
        """Return what is wrong with it: an empty list if it is alive."""
        found = []
        if self.supervisor_age_seconds > limit_seconds:
            found.append(f"the supervisor has not turned for {self.supervisor_age_seconds:.0f} s")
        for one in self.processes:
            if one.loops_age_seconds > limit_seconds:
                found.append(f"process {one.number} has not turned for {one.loops_age_seconds:.0f} s")
            if one.redis_age_seconds > limit_seconds:
                found.append(f"process {one.number} has not reached Redis for {one.redis_age_seconds:.0f} s")
        return found


class HealthServer(PageServer):
    """Serves the three pages of a worker."""

    def __init__(self, host: str, port: int, look: Callable[[], Health], limit_seconds: float) -> None:
        self._look, self._limit = look, limit_seconds
        pages = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        super().__init__(host, port, pages, name="rmq-worker")

    def _healthz(self) -> tuple[bool, str, str]:
        health = self._look()
        return _document(health, health.troubles(self._limit))

    def _readyz(self) -> tuple[bool, str, str]:
        health = self._look()
        return _document(health, [] if health.is_ready else ["not all processes run and reach Redis"])

    def _metrics(self) -> tuple[bool, str, str]:
        return True, METRICS_TYPE, "".join(metrics(self._look()))


def _document(health: Health, troubles: list[str]) -> tuple[bool, str, str]:
    status = "failing" if troubles else "stopping" if health.stopping else "ok"
    facts = {"status": status, "troubles": troubles, "processes": [one.to_dict() for one in health.processes]}
    return not troubles, "application/json", json.dumps(facts) + "\n"


# Metrics, in the text format of Prometheus

BAD_OUTCOMES = ("failed", "dead_lettered", "refused_at_claim")
OUTCOMES = ("handled", *BAD_OUTCOMES, "requeued", "discarded", "unsettled")


def metrics(health: Health) -> Iterator[str]:
    """Yield all metrics of a worker."""
    sums = [(queue, counts) for queue, counts in sorted(health.totals.items())]
    yield from _family(
        "rmq_worker_messages_total",
        "counter",
        "Messages that this worker is done with, by what became of them.",
        (({"queue": queue, "outcome": name}, counts[name]) for queue, counts in sums for name in OUTCOMES),
    )
    for name, text in (("attempts", "Calls of the handler."), ("retried", "Attempts that are retried later.")):
        samples = (({"queue": queue}, counts[name]) for queue, counts in sums)
        yield from _family(f"rmq_worker_{name}_total", "counter", text, samples)
    yield from _handlers(health)
    ages = [one.redis_age_seconds for one in health.processes]
    for name, kind, text, value in (
        ("processes", "gauge", "Processes that are ready.", sum(one.ready for one in health.processes)),
        ("processes_wanted", "gauge", "Processes that there should be.", health.wanted_processes),
        ("ready", "gauge", "Whether /readyz says yes.", int(health.is_ready)),
        ("restarts_total", "counter", "Processes that ended by themselves and were restarted.", health.restarts),
        (
            "redis_seen_seconds",
            "gauge",
            "How long ago each process has reached Redis at least.",
            max(ages, default=0.0),
        ),
    ):
        yield from _family(f"rmq_worker_{name}", kind, text, [({}, value)])


def _handlers(health: Health) -> Iterator[str]:
    parts = [health.ended, *(one.activity for one in health.processes)]
    running: Counter[str] = Counter()
    for one in health.processes:
        running.update(one.activity.get("running", {}))
    queues = sorted(health.totals)
    yield from _family(
        "rmq_worker_handlers", "gauge", "Handlers that run now.", (({"queue": one}, running[one]) for one in queues)
    )
    longest = max((one.activity.get("longest_seconds", 0.0) for one in health.processes), default=0.0)
    text = "How long the handler has been running that runs longest."
    yield from _family("rmq_worker_longest_handler_seconds", "gauge", text, [({}, longest)])
    name = "rmq_worker_handler_duration_seconds"
    yield f"# HELP {name} How long handlers took.\n# TYPE {name} histogram\n"
    for queue in queues:
        counts = [sum(bucket) for bucket in zip(*_rows(parts, queue), strict=True)]
        seen = 0
        for limit, count in zip((*map(str, DURATION_BUCKETS), "+Inf"), counts, strict=True):
            seen += count
            yield _sample(f"{name}_bucket", {"queue": queue, "le": limit}, seen)
        yield _sample(f"{name}_sum", {"queue": queue}, sum(part.get("seconds", {}).get(queue, 0.0) for part in parts))
        yield _sample(f"{name}_count", {"queue": queue}, seen)


def _rows(parts: Iterable[dict[str, Any]], queue: str) -> list[list[int]]:
    nothing = [0] * (len(DURATION_BUCKETS) + 1)
    return [nothing, *(part.get("buckets", {}).get(queue, nothing) for part in parts)]


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
