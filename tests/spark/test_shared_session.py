"""A test that fails during a call to the JVM fails alone: the next one gets a working session."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import signal

import pytest
from py4j.protocol import Py4JError


def interrupt(signum, frame):
    raise OSError("in the middle of a call")


def test_first(spark):
    assert spark._jvm.java.lang.System.nanoTime() != 0


@pytest.mark.timeout(60)
def test_interrupted_and_then_too_slow(spark):
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(Py4JError):
        spark._jvm.java.lang.Thread.sleep(3_600_000)
    signal.signal(signal.SIGALRM, before)
    spark._jvm.java.lang.Thread.sleep(3_600_000)


def test_last(spark):
    assert spark.sql("select 5").first()[0] == 5
"""


@pytest.mark.in_full
def test_a_test_that_is_interrupted_or_too_slow_fails_alone(tmp_path):
    (tmp_path / "test_calls.py").write_text(TESTS)
    settings = ["-c", ROOT / "pyproject.toml", "-p", "tests.spark.conftest", "-p", "no:cacheprovider", "-rA"]
    command = [sys.executable, "-m", "pytest", *settings, tmp_path / "test_calls.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1100)
    outcomes = {name: outcome for outcome, name in re.findall(r"^([A-Z]+) \S*::test_(\w+)", ended.stdout, re.MULTILINE)}
    assert outcomes == {"first": "PASSED", "interrupted_and_then_too_slow": "FAILED", "last": "PASSED"}, ended.stdout
    assert "it took longer than 60 seconds, and its JVM was killed" in ended.stdout
