"""Wait for a condition, with a limit."""

import socket
import time
from collections.abc import Callable

MAX_WAIT_SECONDS = 120.0  # only a failure takes that long, even on a busy machine


def until(condition: Callable[[], bool], within_seconds: float = MAX_WAIT_SECONDS) -> bool:
    deadline = time.monotonic() + within_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def answers(port: int) -> bool:
    """Whether a program listens on this port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        pass  # it ended while we connected: ask again
    return True


def falls_silent(port: int, within_seconds: float = MAX_WAIT_SECONDS) -> bool:
    return until(lambda: not answers(port), within_seconds)
