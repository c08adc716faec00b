"""A table of cases in one test: each row fails by itself, and with its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def row(subtests: pytest.Subtests, **names: Any) -> Iterator[None]:
    """A row of a table, which becomes a subtest if it fails.

    A subtest that passes costs half of what a test costs, and there are thousands of rows.
    """
    try:
        yield
    except (Exception, pytest.fail.Exception) as failure:
        with subtests.test(**names):
            raise failure
