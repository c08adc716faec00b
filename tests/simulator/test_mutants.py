"""Planted bugs: the simulator finds them, shrinks what it found, and the documentation lists them all."""

from pathlib import Path

import pytest

from simulator import mutants
from simulator.__main__ import main
from simulator.mutants import MUTANTS, PAGE
from simulator.oracle.invariants import INVARIANTS
from simulator.shrink import command, shrink
from simulator.world import run
from tests.depth import often

# Found by the first schedules of a run, so that looking for them takes seconds.
QUICKLY_FOUND = (
    "a settled message stays in flight: the fast path forgets one of two keys",
    "a deduplication marker is not set",
    "a publish wakes nobody",
    "the ack comes before the handler",
    "a claim by the script for the usual case does not look for cancelled messages",
    "a message that failed lets the others of its tenant pass",
    "an import does not remember its messages",
    "growing leaves the old number to those who use it",
    "a tick is published by everybody who is told of it",
    "a schedule that was changed publishes a tick of its old message",
    "a drain forgets unconfirmed claims",
)


@pytest.mark.parametrize("name", [one.name for one in MUTANTS] if often(0, 1) else QUICKLY_FOUND)
def test_a_planted_bug_is_found(name: str):
    """An invariant breaks within the first schedules."""
    (mutant,) = (one for one in MUTANTS if one.name == name)
    _, outcome = mutant.find(most=often(60, 2000))
    assert outcome is not None, "the bug was not found"


def test_one_bug_can_be_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its row is written, and the others stay as they are."""
    page, name = tmp_path / "page.md", "renew answers yes and renews nothing"
    others = [line for line in PAGE.read_text().splitlines() if name not in line]
    page.write_text("\n".join(others))
    monkeypatch.setattr(mutants, "PAGE", page)
    assert main(["--mutants", "renews nothing", "--workers", "1"]) == 0
    written = page.read_text().splitlines()
    assert [line for line in written if name not in line] == others
    (row,) = (line for line in written if name in line)
    assert row.endswith("| lease |")
    assert main(["--mutants", "no such bug"]) == 1


def test_a_failing_schedule_is_shrunk():
    """The smaller schedule breaks the same invariant, has no more actors or faults, and says how to replay it."""
    (mutant,) = (one for one in MUTANTS if one.name == "a deduplication marker is not set")
    _, found = mutant.find(most=60)
    assert found is not None and found.violation is not None
    smallest = shrink(found, lambda plan: run(plan, scripts=mutant.scripts()))
    assert smallest.violation is not None
    assert smallest.violation.invariant == found.violation.invariant
    assert len(smallest.plan.actors) <= len(found.plan.actors)
    assert len(smallest.plan.faults) <= len(found.plan.faults)
    assert command(smallest.plan).startswith(f"python -m simulator --seed {found.plan.seed}")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_every_planted_bug_still_changes_something(mutant):
    """The texts that it replaces are still in the scripts."""
    assert mutant.scripts() or mutant.patch is not type(mutant).patch


def test_the_documentation_lists_all_bugs_and_invariants():
    """The page is written from a run; a new bug or invariant needs another one."""
    text = PAGE.read_text()
    for mutant in MUTANTS:
        assert f"| {mutant.name} |" in text
    for name, what in INVARIANTS.items():
        assert f"| {name} | {what} |" in text
