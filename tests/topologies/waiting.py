"""Waiting for servers to agree: bounded, and loud when the time is up."""

import time
from collections.abc import Callable
from typing import Any

# Servers that gossip need seconds where a single one needs milliseconds; reaching this means that something hangs.
PATIENCE_SECONDS = 60.0


def wait_until(happened: Callable[[], Any], what: str, within_seconds: float = PATIENCE_SECONDS) -> None:
    """Block until it has happened; an AssertionError names what did not."""
    deadline = time.monotonic() + within_seconds
    while not happened():
        assert time.monotonic() < deadline, f"{what}: did not happen within {within_seconds:g} s"
        time.sleep(0.01)
