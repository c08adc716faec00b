"""What a campaign injects and when: drawn from a seed, so that the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# Each nemesis, and what it does.
NEMESES = {
    "kill": "a process is killed with SIGKILL, and another one starts in its place",
    "stop": "a process is stopped for longer than its leases (SIGSTOP), and continues",
    "cut-before": "connections break before the server has received a request",
    "cut-after": "connections break after the server has executed a request, and its reply is lost",
    "restart": "the server is killed with SIGKILL and restarts from its append-only file",
    "failover": "the primary is killed, and its replica, which was in step, is promoted",
    "stale-failover": "the primary is killed while its replica lags behind, so writes are lost with it",
    "full-memory": "the server has no memory left and refuses everything that needs some",
    "busy": "a script blocks the server, which answers BUSY",
    "freeze": "the server is stopped (SIGSTOP): connections stay open and nothing answers",
    "move-slot": "the slot of a queue moves to another node of the cluster, key by key",
    "flush-scripts": "all servers forget their scripts (SCRIPT FLUSH)",
    "clock": "the clock of the server steps forward or back (libfaketime)",
    "kill-spark": "the driver and the JVM of the Spark query are killed with SIGKILL",
}
# These get a process as their target, which the plan chooses by a number.
_NEEDS_NUMBER = ("kill", "stop")
_CLOCK_STEPS = (-12, -5, 7, 15)
_LARGEST_OFFSET = 20  # of a clock: a stored reply outlives the last retry of its call by a minute
# A campaign begins with quiet seconds, so that the plots show the usual state first.
_SHORTEST_QUIET, _LONGEST_QUIET = 1.0, 20.0
_HEALING_SECONDS = 1.0  # for a server that restarts, or a replica that copies


@dataclass(frozen=True, slots=True)
class Action:
    """One fault. ``at`` is in seconds after the start; an action waits until the one before it is healed."""

    at: float
    nemesis: str
    seconds: float
    number: int = 0

    def __str__(self) -> str:
        detail = f" {self.number:+d} s" if self.nemesis == "clock" else ""
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.at:7.1f} s  {self.nemesis}{detail}{lasts}"


def make_plan(seed: int, seconds: float, nemeses: Sequence[str], lease_seconds: float) -> list[Action]:
    """Spread the nemeses over the time, every one about as often as any other, in a random order."""
    chance, plan, bag = random.Random(seed), list[Action](), list[str]()
    offset = 0
    quiet = min(_LONGEST_QUIET, max(_SHORTEST_QUIET, seconds / 30))
    at = quiet
    while nemeses:
        bag = bag or chance.sample(list(nemeses), len(nemeses))
        action = _draw(chance, round(at, 1), bag.pop(), lease_seconds, offset)
        offset += action.number if action.nemesis == "clock" else 0
        if action.at + action.seconds > seconds - quiet:
            break
        plan.append(action)
        at += action.seconds + _HEALING_SECONDS + chance.uniform(0.5, 2.0) * quiet / 4
    return plan


def _draw(chance: random.Random, at: float, nemesis: str, lease: float, offset: int) -> Action:
    seconds = {
        "stop": lease + chance.uniform(0.5, 1.5),
        "cut-before": 2.0,
        "cut-after": 2.0,
        "restart": chance.uniform(0.2, 2.0),
        "stale-failover": chance.uniform(1.0, 2.0),
        "full-memory": chance.uniform(1.0, 4.0),
        "busy": chance.uniform(0.5, 2.0),
        "freeze": chance.uniform(0.5, 2.0),
    }.get(nemesis, 0.0)
    number = 0
    if nemesis in _NEEDS_NUMBER:
        number = chance.randrange(1_000)
    elif nemesis == "clock":
        number = chance.choice([step for step in _CLOCK_STEPS if abs(offset + step) <= _LARGEST_OFFSET])
    elif nemesis.startswith("cut"):
        number = chance.randint(1, 4)  # requests of each script
    return Action(at, nemesis, round(seconds, 1), number)


def choose(only: Iterable[str], without: Iterable[str], *, spark: bool) -> list[str]:
    """The nemeses of a campaign. Raises ValueError for a name that does not exist."""
    only, without = list(only), list(without)
    if unknown := {*only, *without} - NEMESES.keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: choose from {', '.join(NEMESES)}")
    chosen = [name for name in NEMESES if (not only or name in only) and name not in without]
    return [name for name in chosen if spark or name != "kill-spark"]


def as_json(plan: Sequence[Action]) -> list[dict[str, Any]]:
    return [asdict(action) for action in plan]
