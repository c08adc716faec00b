"""Makes a failing schedule smaller: fewer faults, fewer actors, fewer messages, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from simulator.plan import Plan, plan_of
from simulator.world import Outcome

T = TypeVar("T")
_MOST_RUNS = 150


def shrink(outcome: Outcome, run: Callable[[Plan], Outcome]) -> Outcome:
    """Return a smaller schedule that breaks the same invariant, or the same one if there is none."""
    assert outcome.violation is not None
    invariant, runs, smallest = outcome.violation.invariant, 0, outcome
    progress = True
    while progress and runs < _MOST_RUNS:
        progress = False
        for plan in _smaller(smallest.plan):
            runs += 1
            tried = run(plan)
            if tried.violation is not None and tried.violation.invariant == invariant:
                smallest, progress = tried, True
                break
            if runs >= _MOST_RUNS:
                break
    return smallest


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Schedules with less in them, the ones with much less first."""
    faults = [one.number for one in plan.faults]
    for some in _subsets(faults):
        yield plan.only(faults=set(some))
    names = [one.name for one in plan.actors]
    for kept in _subsets(names):
        if kept:
            yield plan.only(actors=set(kept))
    most = plan.messages or max((one.amount for one in plan.actors if one.kind == "producer"), default=0)
    for fewer in (1, 2, 3, 5):
        if fewer < most:
            yield plan.only(messages=fewer)


def _subsets(items: Sequence[T]) -> Iterator[list[T]]:
    """Without all, without one half or the other, without each."""
    if not items:
        return
    yield []
    half = len(items) // 2
    if half:
        yield list(items[:half])
        yield list(items[half:])
    if len(items) > 1:
        for place in range(len(items)):
            yield [*items[:place], *items[place + 1 :]]


def command(plan: Plan) -> str:
    """The command that replays a schedule, shrunk or not."""
    whole, words = plan_of(plan.seed), [f"python -m simulator --seed {plan.seed}"]
    if plan.actors != whole.actors:
        words.append(f"--actors {','.join(one.name for one in plan.actors)}")
    if plan.faults != whole.faults:
        words.append(f"--faults {','.join(str(one.number) for one in plan.faults) or 'none'}")
    if plan.messages:
        words.append(f"--messages {plan.messages}")
    return " ".join(words)
