"""Runs many schedules on all cores, remembers how far it has come, and shrinks what fails."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from simulator.plan import plan_of
from simulator.shrink import shrink
from simulator.trace import report
from simulator.world import run

DIRECTORY = Path(".simulate")
_CHUNK = 25  # schedules that a worker takes at a time


@dataclass
class Progress:
    """How far a campaign has come; kept in a file, so that it can be resumed."""

    first: int = 0
    next: int = 0  # all schedules before this one are done
    schedules: int = 0
    steps: int = 0  # scripts and commands that the servers executed
    messages: int = 0
    seconds: float = 0.0  # of processor time
    faults: dict[str, int] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Progress:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(self), indent=1))
        beside.replace(path)

    def add(self, chunk: dict[str, Any]) -> None:
        """Count a chunk that is done."""
        self.schedules += chunk["schedules"]
        self.steps += chunk["steps"]
        self.messages += chunk["messages"]
        self.seconds += chunk["seconds"]
        self.faults = dict(sorted((Counter(self.faults) + Counter(chunk["faults"])).items()))
        self.failures += chunk["failures"]

    def line(self) -> str:
        return (
            f"{self.schedules:,} schedules, {self.steps:,} steps of the server, {self.messages:,} messages, "
            f"{sum(self.faults.values()):,} faults, {len(self.failures)} failures"
        )


def _run_chunk(seeds: range, deadline: float | None) -> dict[str, Any]:
    started, faults = time.process_time(), Counter[str]()
    chunk: dict[str, Any] = {"first": seeds.start, "schedules": 0, "steps": 0, "messages": 0, "failures": []}
    chunk["is_whole"] = True
    for seed in seeds:
        # Here, and not where chunks are made: the pool takes a thousand of them before the first one is done.
        if deadline is not None and time.monotonic() >= deadline:
            chunk["is_whole"] = False
            break
        outcome = run(plan_of(seed))
        chunk["schedules"] += 1
        chunk["steps"] += outcome.steps
        chunk["messages"] += outcome.messages
        faults += outcome.faults
        if outcome.violation is not None:
            chunk["failures"].append(seed)
    return {**chunk, "faults": dict(faults), "seconds": time.process_time() - started}


def campaign(schedules: int | None, minutes: float | None, first: int, workers: int, *, resume: bool) -> int:
    """Run schedules until so many or so much time is over. Returns the exit status."""
    path = DIRECTORY / "progress.json"
    progress = Progress.load(path) if resume else Progress(first=first, next=first)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    last = None if schedules is None else progress.next + schedules
    shown = 0.0
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for chunk in pool.imap(partial(_run_chunk, deadline=deadline), _chunks(progress.next, last)):
            progress.add(chunk)
            progress.next = chunk["first"] + chunk["schedules"]
            progress.save(path)
            for seed in chunk["failures"]:
                print(f"\nschedule {seed} failed; shrinking it", flush=True)
                print(_report_failure(seed), flush=True)
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                end = "\r" if sys.stdout.isatty() else "\n"
                print(f"up to {progress.next - 1}: {progress.line()}", end=end, flush=True)
            if not chunk["is_whole"]:
                break  # what other workers have done behind it does not count: a campaign is resumed here
    print(f"\ndone up to {progress.next - 1}: {progress.line()}, {progress.seconds:,.0f} s of processor time")
    return 1 if progress.failures else 0


def _chunks(first: int, last: int | None) -> Iterator[range]:
    while last is None or first < last:
        end = first + _CHUNK if last is None else min(first + _CHUNK, last)
        yield range(first, end)
        first = end


def _report_failure(seed: int) -> str:
    """Shrink a failing schedule, and keep what is known of it in a file."""
    smallest = shrink(run(plan_of(seed)), run)
    text = report(smallest)
    path = DIRECTORY / "failures" / f"{seed}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report(smallest, last=None) + "\n")
    return f"{text}\n(all steps are in {path})"


def default_workers() -> int:
    """As many as there are cores."""
    return os.cpu_count() or 1
