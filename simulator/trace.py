"""Writes down what happened in a schedule, for people to read."""

from __future__ import annotations

from simulator.plan import Plan
from simulator.shrink import command
from simulator.world import Outcome

_START = 1000.0  # of virtual time


def describe(plan: Plan) -> list[str]:
    """Who takes part, how the queue is set, and what goes wrong."""
    settings = plan.settings
    options = {**settings.gateway, **settings.queue}
    lines = [f"schedule {plan.seed}"]
    lines += [f"  option {name} = {value}" for name, value in options.items() if value not in (None, False)]
    for one in plan.actors:
        extra = f", {one.amount} steps" if one.amount else f", {one.size} at a time, concurrency {one.concurrency}"
        lines.append(f"  actor  {one.name}: {one.kind}{extra}")
    lines += [f"  fault  {one.number}: {one}" for one in plan.faults]
    return lines


def read(outcome: Outcome, last: int | None = None) -> list[str]:
    """The steps, one to a line: time, process, what, and how it ended."""
    steps = outcome.trace if last is None else outcome.trace[-last:]
    lines = [] if len(steps) == len(outcome.trace) else [f"  ... {len(outcome.trace) - len(steps)} steps before"]
    for at, what, process, detail in steps:
        lines.append(f"{at - _START:9.4f}  {process:<14} {what:<22} {_clean(detail)}".rstrip())
    return lines


def _clean(text: str) -> str:
    return "".join(letter if letter.isprintable() and ord(letter) < 0x2000 else "." for letter in text)


def report(outcome: Outcome, last: int | None = 80) -> str:
    """Everything about a schedule that failed."""
    lines = [*describe(outcome.plan), *read(outcome, last)]
    if outcome.violation is not None:
        lines += ["", f"violated: {outcome.violation}"]
    return "\n".join([*lines, f"replay:   {command(outcome.plan)}"])
