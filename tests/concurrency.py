"""Waits for a condition with a limit, and runs functions in threads beside the test."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

# Far beyond what a loaded machine needs: reaching it means that something hangs.
LIMIT_SECONDS = 120


def until(happened: Callable[[], Any], what: str = "the condition") -> None:
    """Wait until a condition is true, or raise AssertionError with its description."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"{what}: not true within {LIMIT_SECONDS} s"
        time.sleep(0.005)


def start(work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
    """Run a function in a daemon thread. The future gets its result or its exception."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="beside-the-test", daemon=True).start()
    return outcome


@contextlib.contextmanager
def beside(work: Callable[..., Any], *arguments: Any) -> "Iterator[Future[Any]]":
    """Run a function beside the block. The block ends when both have ended, with the error of either."""
    outcome = start(work, *arguments)
    yield outcome
    outcome.result(LIMIT_SECONDS)
