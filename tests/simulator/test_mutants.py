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

# With the seed of a schedule that finds each of them, so that looking for them takes no time.
QUICKLY_FOUND = {
    "a settled message stays in flight: the fast path forgets one of two keys": 5,
    "the ack comes before the handler": 1,
    "a message that failed lets the others of its tenant pass": 13,
    "growing leaves the old number to those who use it": 0,
    "a schedule that was changed publishes a tick of its old message": 19,
    "a drain forgets unconfirmed claims": 108,
    "a caller of a group gets the answer of its neighbour": 2,
    "a group of acknowledgements forgets its last message": 21,
    "a settlement that has no answer ends the loop": 79,
}


@pytest.mark.parametrize("name", [one.name for one in MUTANTS] if often(0, 1) else QUICKLY_FOUND)
def test_a_planted_bug_is_found(name: str):
    """An invariant breaks within the first schedules."""
    (mutant,) = (one for one in MUTANTS if one.name == name)
    _, outcome = mutant.find(first=often(QUICKLY_FOUND.get(name, 0), 0), most=often(60, 2000))
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
    _, found = mutant.find(first=4, most=60)
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
