"""Waiting, for a bounded time, until something has happened."""

import socket
import time
from collections.abc import Callable

PATIENCE_SECONDS = 60.0  # only a failure takes that long, however busy the machine is


def until(happened: Callable[[], bool], within_seconds: float = PATIENCE_SECONDS) -> bool:
    deadline = time.monotonic() + within_seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


def falls_silent(port: int, within_seconds: float = PATIENCE_SECONDS) -> bool:
    return until(lambda: not answers(port), within_seconds)
