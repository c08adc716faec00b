"""How much the tests try: `make test` enough to find likely errors, `make full` much more."""

import os
from typing import Any

import pytest

SETTING = "RMQ_TESTS"
FULL = os.environ.get(SETTING) == "full"


def often(usually: int, in_full: int) -> int:
    """How often to try something random or large."""
    return in_full if FULL else usually


def only_in_full(*values: Any) -> Any:
    """A case of a parametrized test that `make test` leaves out: another case goes the same way."""
    return pytest.param(*values, marks=pytest.mark.in_full)
