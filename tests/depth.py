"""How much is tried: `make test` tries enough to find what is likely, `make full` everything."""

import os

SETTING = "RMQ_TESTS"
FULL = os.environ.get(SETTING) == "full"


def often(usually: int, in_full: int) -> int:
    """How often something random or large is tried."""
    return in_full if FULL else usually
