"""What happens at the same time: work in a thread beside the test, and bounded waits for it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

# Far beyond what a loaded machine needs: reaching it means that something hangs.
PATIENCE_SECONDS = 60.0


def until(happened: Callable[[], Any], within_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until it has happened; an AssertionError says that it did not."""
    deadline = time.monotonic() + within_seconds
    while not happened():
        assert time.monotonic() < deadline, f"did not happen within {within_seconds:g} s"
        time.sleep(0.005)


def start(work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
    """Run it in a daemon thread; its result, or what it raised, is in the future."""
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
    """Run it beside the block; the block ends when both have ended, with the error of either."""
    outcome = start(work, *arguments)
    yield outcome
    outcome.result(PATIENCE_SECONDS)
