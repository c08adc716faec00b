"""The command line of the simulator: run many schedules, replay one, or show that planted bugs are found."""

from __future__ import annotations

import argparse
import sys

from simulator.campaign import campaign, default_workers
from simulator.plan import Plan, plan_of
from simulator.shrink import shrink
from simulator.trace import report
from simulator.world import run


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--schedules", type=int, help="how many schedules to run (1,000 if no --minutes are given)")
    parser.add_argument("--minutes", type=float, help="for how long to run")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first schedule")
    parser.add_argument("--resume", action="store_true", help="continue behind the last schedule that is done")
    parser.add_argument("--workers", type=int, default=default_workers(), help="processes to use")
    parser.add_argument("--seed", type=int, help="replay this schedule, and print every step")
    parser.add_argument("--actors", help="replay with these actors only, separated by commas")
    parser.add_argument("--faults", help="replay with these faults only, or none")
    parser.add_argument("--messages", type=int, help="replay with at most so many publishes of each producer")
    parser.add_argument("--shrink", action="store_true", help="make the schedule smaller if it fails")
    mutants = "find the planted bugs whose names have this part, or all, and write their rows in the docs"
    parser.add_argument("--mutants", nargs="?", const="", metavar="PART", help=mutants)
    given = parser.parse_args(arguments)
    if given.mutants is not None:
        from simulator.mutants import write_table

        return write_table(given.workers, given.mutants)
    if given.seed is not None:
        return _replay(_plan(given), shrinks=given.shrink)
    schedules = given.schedules if given.schedules is not None or given.minutes is not None else 1000
    return campaign(schedules, given.minutes, given.first, given.workers, resume=given.resume)


def _plan(given: argparse.Namespace) -> Plan:
    plan = plan_of(given.seed)
    actors = None if given.actors is None else set(given.actors.split(","))
    faults = None if given.faults is None else {int(one) for one in given.faults.split(",") if one != "none"}
    return plan.only(actors=actors, faults=faults, messages=given.messages)


def _replay(plan: Plan, *, shrinks: bool) -> int:
    outcome = run(plan)
    if shrinks and outcome.violation is not None:
        outcome = shrink(outcome, run)
    print(report(outcome, last=None))
    print(f"digest:   {outcome.digest}")
    return 0 if outcome.violation is None else 1


if __name__ == "__main__":
    sys.exit(main())
