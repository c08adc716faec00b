"""Waiting, for a bounded time, until something has happened."""

import socket
import time
from collections.abc import Callable


def until(happened: Callable[[], bool], within_seconds: float = 5.0) -> bool:
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


def falls_silent(port: int, within_seconds: float = 5.0) -> bool:
    return until(lambda: not answers(port), within_seconds)
