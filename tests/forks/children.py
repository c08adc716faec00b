"""Forked children of the test process: each runs one function, returns its result, and never outlives its test."""

import contextlib
import os
import pickle
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

# Far beyond what a loaded machine needs: reaching it means that something hangs.
LIMIT_SECONDS = 120


class ChildFailed(AssertionError):
    """The child raised, was killed, or hung; the text says which."""


class Child:
    """One forked process. It ends with its function, whatever else the parent is doing."""

    def __init__(self, fork: Callable[[], int], work: Callable[..., Any], *arguments: Any) -> None:
        self._reader, mouth = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns about a fork beside threads, which is what is tested here.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = fork()
        if self.pid == 0:
            _live(mouth, work, *arguments)
        os.close(mouth)
        self._status: int | None = None

    def result(self) -> Any:
        """The result of the function, or an error with the reason why there is none."""
        said = self._listen()
        status = self.wait()
        if not said:
            raise ChildFailed(f"the child ended with {status} without a result; {-signal.SIGALRM} means that it hung")
        outcome, value = pickle.loads(said)
        if outcome != "returned":
            raise ChildFailed(f"the child raised\n{value}")
        return value

    def wait(self) -> int:
        """The exit code, or minus the number of the signal that ended it."""
        deadline = time.monotonic() + LIMIT_SECONDS + 5
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
                os.close(self._reader)
            elif time.monotonic() > deadline:
                raise ChildFailed("the child does not end")
            else:
                time.sleep(0.002)
        return self._status

    def end(self) -> None:
        """Kill it, if it is still alive, and collect it."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def _listen(self) -> bytes:
        """Everything until the end of file; a child that hangs is ended by its own alarm."""
        said = b""
        while select.select([self._reader], [], [], LIMIT_SECONDS + 5)[0]:
            received = os.read(self._reader, 65536)
            if not received:
                break
            said += received
        return said


def _live(mouth: int, work: Callable[..., Any], *arguments: Any) -> NoReturn:
    """The child's main function. It must not return into the test runner, so it exits without clean-up."""
    code = 1
    try:
        # A child inherits the handler of pytest's timeout, but not its alarm.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_SECONDS)
        said = pickle.dumps(("returned", work(*arguments)))
        code = 0
    except BaseException:
        said = pickle.dumps(("raised", traceback.format_exc()))
    try:
        with open(mouth, "wb") as pipe:
            pipe.write(said)
    finally:
        os._exit(code)


class Family:
    """Forks children, and makes sure that none is left."""

    def __init__(self, fork: Callable[[], int] = os.fork) -> None:
        self._fork = fork
        self._children: list[Child] = []

    def fork(self, work: Callable[..., Any], *arguments: Any) -> Child:
        child = Child(self._fork, work, *arguments)
        self._children.append(child)
        return child

    def end(self) -> None:
        for child in self._children:
            with contextlib.suppress(ChildFailed):
                child.end()
