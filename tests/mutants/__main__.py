"""Puts each mutant into a copy of the project, and finds out whether the tests of `make test` notice it.

The likely test files of a mutant run first and stop at their first failure. Only a mutant that survives them gets the
whole run. A test counts as the finder if it fails with the mutant and passes without it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests import depth
from tests.mutants import first_failure
from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
# The check of the mutants themselves would find each of them by its text.
FOR_PYTEST = ("-x", "-q", "-pno:cacheprovider", "-ptests.mutants.first_failure", "--ignore=tests/mutants")
IMPORTED = "import redis_message_queue, redis_message_queue.asyncio; print(redis_message_queue.__file__)"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: the test that found it, or None if it survived, and how long that took."""

    name: str
    file: str
    found_by: str | None = None
    in_whole_run: bool = False  # no likely test file noticed it
    trouble: str | None = None  # why it is not known
    seconds: float = 0.0

    @property
    def is_found(self) -> bool:
        return self.found_by is not None and self.trouble is None

    @property
    def finder(self) -> str:
        """The test file that found it, as the table shows it."""
        if self.trouble is not None:
            return "NOT KNOWN"
        if self.found_by is None:
            return "SURVIVED"
        return self.found_by.partition("::")[0] + (" (in the whole run)" if self.in_whole_run else "")


class Copy:
    """A copy of the project, in which mutants are tried one after the other."""

    def __init__(self, root: Path, processes: int) -> None:
        self._root = root
        self._at_once = ("-p", "tests.pool", "--processes", str(processes))
        self._failure = root.with_name("first_failure")
        self._environment = os.environ | {"PYTHONPATH": str(root / "src"), first_failure.SETTING: str(self._failure)}
        self._environment.pop(depth.SETTING, None)  # what `make test` runs, not `make full`

    def check_import(self) -> None:
        """Raise if the library cannot be imported, or if tests would import another copy of it."""
        ended = self._run([sys.executable, "-c", IMPORTED])
        if ended.returncode or not Path(ended.stdout.strip()).is_relative_to(self._root):
            raise RuntimeError(f"the mutant breaks the import of the library: {ended.stdout}{ended.stderr}")

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Have the mutant in the copy meanwhile."""
        path = self._root / mutant.file
        before = path.read_text()
        path.write_text(mutant.applied_to(before))
        try:
            yield
        finally:
            path.write_text(before)

    def find_failure(self, paths: Sequence[str]) -> str | None:
        """Run these tests. Returns the first one that fails."""
        at_once = () if "::" in paths[0] else self._at_once
        return self._failure_of([sys.executable, "-m", "pytest", *FOR_PYTEST, *at_once, *paths])

    def find_failure_anywhere(self) -> str | None:
        """Run all tests of `make test`. Returns the first one that fails."""
        return self._failure_of([sys.executable, "-m", "tests.run", *FOR_PYTEST])

    def _failure_of(self, command: Sequence[str]) -> str | None:
        self._failure.unlink(missing_ok=True)
        ended = self._run(command)
        if self._failure.exists():
            return self._failure.read_text()
        if ended.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"the tests ended with status {ended.returncode}:\n{ended.stdout[-3000:]}{ended.stderr}")
        return None

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=self._root, env=self._environment, text=True, capture_output=True)


@contextmanager
def copied(processes: int) -> Iterator[Copy]:
    """Copy the project as it is, with what is not committed, and with its history, which some tests read."""
    with tempfile.TemporaryDirectory(prefix="rmq-mutants-") as directory:
        root = Path(directory, "project")
        clone = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(root)]
        subprocess.run(clone, check=True)
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).exists():  # deleted, and not committed yet
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        yield Copy(root, processes)


def judge(mutant: Mutant, copy: Copy, *, likely_only: bool) -> Verdict:
    """Find out which test notices the mutant."""
    started, found_by, in_whole_run, trouble = time.monotonic(), None, False, None
    try:
        with copy.changed(mutant):
            copy.check_import()
            found_by = copy.find_failure(mutant.likely)
            if found_by is None and not likely_only:
                in_whole_run, found_by = True, copy.find_failure_anywhere()
        if found_by is not None and copy.find_failure([found_by]) is not None:
            trouble = f"{found_by} also fails without the mutant; correct that test"
    except RuntimeError as error:  # of this command; the other mutants can be tried
        trouble = str(error)
    return Verdict(mutant.name, mutant.file, found_by, in_whole_run, trouble, round(time.monotonic() - started, 1))


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a Markdown table."""
    rows = [f"| {one.name} | `{Path(one.file).name}` | {one.finder} | {one.seconds:.0f} |" for one in verdicts]
    return "\n".join(["| mutant | in | found by | seconds |", "|---|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants that the command line asks for. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only mutants whose names contain one of these texts")
    parser.add_argument("--likely-only", action="store_true", help="do not run all tests for a mutant that survives")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="how many run the likely test files")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results to this file")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    options = parser.parse_args(arguments)
    chosen = [one for one in MUTANTS if options.only is None or any(text in one.name for text in options.only)]
    if not chosen:
        parser.error("no mutant has such a name")
    if options.list:
        print("\n".join(f"{one.file}: {one.name}" for one in chosen))
        return 0
    verdicts: list[Verdict] = []
    with copied(options.processes) as copy:
        for mutant in chosen:
            verdicts.append(judge(mutant, copy, likely_only=options.likely_only))
            one = verdicts[-1]
            told = one.trouble or one.found_by or "SURVIVED"
            print(f"{len(verdicts)} of {len(chosen)}: {one.name}: {told}, {one.seconds:.0f} s", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(each) for each in verdicts], indent=2))
    found, unknown = sum(one.is_found for one in verdicts), sum(one.trouble is not None for one in verdicts)
    print(f"\n{table(verdicts)}\n\n{found} found, {len(verdicts) - found - unknown} survived", end="")
    print(f", {unknown} not known" if unknown else "")
    return 0 if found == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
