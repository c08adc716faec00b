"""Worker processes of a test: when one is killed, another starts in its place."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.concurrency import LIMIT_SECONDS
from tests.fork_server import Program


def start_program(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a program of this directory, with warnings as errors, in its own session."""
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name(program)), *map(str, arguments)]
    return Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


class Workers:
    """One process of a program for each list of arguments."""

    def __init__(self, program: str, *arguments: Sequence[object]) -> None:
        self._program, self._arguments = program, arguments
        self.members: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.members = [self._start(place) for place in range(len(self._arguments))]
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()
            member.communicate()

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        return start_program(self._program, *self._arguments[place])

    def kill(self, place: int) -> None:
        """SIGKILL: no clean-up."""
        self.members[place].send_signal(signal.SIGKILL)
        self.members[place].communicate()
        self.members[place] = self._start(place)

    def failures(self) -> list[object]:
        """Wait until all workers have ended. Returns the output and status of those that failed or wrote something.

        A retry may be logged: a Ctrl-C can close a connection that another thread uses.
        """
        outcomes = [(*member.communicate(timeout=LIMIT_SECONDS), member.returncode) for member in self.members]
        return [one for one in outcomes if (one[0], _without_retries(one[1]), one[2]) != (b"", b"", 0)]


def _without_retries(logged: bytes) -> bytes:
    lines = logged.splitlines(keepends=True)
    return b"".join(line for line in lines if b", retrying in " not in line and b" answers again, after " not in line)
