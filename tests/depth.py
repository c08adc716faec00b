"""How much the tests try: `make test` enough to find likely errors, `make full` much more."""

import os

SETTING = "RMQ_TESTS"
FULL = os.environ.get(SETTING) == "full"


def often(usually: int, in_full: int) -> int:
    """How often to try something random or large."""
    return in_full if FULL else usually
