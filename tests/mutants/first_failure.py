"""A pytest plugin that writes down the first test that fails: with -x and several processes others may follow."""

import os
from pathlib import Path

import pytest

SETTING = "RMQ_FIRST_FAILURE"  # the file to write


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = Path(os.environ[SETTING])
    if report.failed and not path.exists():
        path.write_text(report.nodeid)
