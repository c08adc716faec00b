"""Forked children of the test process: each runs one function, says what came of it, and never outlives its test."""

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
PATIENCE_SECONDS = 60


class ChildFailed(AssertionError):
    """The child raised, was killed, or hung: the text says which."""


class Child:
    """One forked process; it ends with its function, whatever else the parent has under way."""

    def __init__(self, fork: Callable[[], int], work: Callable[..., Any], *arguments: Any) -> None:
        self._ear, mouth = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads: that is what is tried here.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = fork()
        if self.pid == 0:
            _live(mouth, work, *arguments)
        os.close(mouth)
        self._status: int | None = None

    def result(self) -> Any:
        """What the function returned; an error says why there is nothing."""
        said = self._listen()
        status = self.wait()
        if not said:
            raise ChildFailed(f"the child ended with {status} and said nothing; {-signal.SIGALRM} means that it hung")
        outcome, value = pickle.loads(said)
        if outcome != "returned":
            raise ChildFailed(f"the child raised\n{value}")
        return value

    def wait(self) -> int:
        """The exit code; minus the number of the signal, if one ended it."""
        deadline = time.monotonic() + PATIENCE_SECONDS + 5
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
                os.close(self._ear)
            elif time.monotonic() > deadline:
                raise ChildFailed("the child does not end")
            else:
                time.sleep(0.002)
        return self._status

    def end(self) -> None:
        """Kill it, if it still lives, and collect it."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def _listen(self) -> bytes:
        """Everything up to the end; a child that hangs is ended by its own alarm."""
        said = b""
        while select.select([self._ear], [], [], PATIENCE_SECONDS + 5)[0]:
            heard = os.read(self._ear, 65536)
            if not heard:
                break
            said += heard
        return said


def _live(mouth: int, work: Callable[..., Any], *arguments: Any) -> NoReturn:
    """The child's life. It must not come back into the test runner, so it ends without any goodbyes."""
    code = 1
    try:
        # The alarm of the parent's own timeout is not inherited, but its handler is.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE_SECONDS)
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
    """Forks children and sees to it that none is left."""

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
