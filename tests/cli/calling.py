"""The program `rmq` as tests call it: in this process, in one of its own, or at a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from redis_message_queue.__main__ import main

LONGEST_SECONDS = 60
Rmq = Callable[..., "Ended"]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


def caller(capsys: pytest.CaptureFixture[str], url: str) -> Rmq:
    """Runs a command in this process, on the server of that URL."""

    def call(*words: str) -> Ended:
        status = main([*words, "--url", url])
        said = capsys.readouterr()
        return Ended(status, said.out, said.err)

    return call


def command(*words: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "redis_message_queue", *words]


@contextlib.contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of its own, which ends with the test if not before."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(*words), text=True, **pipes | options) as process:
        try:
            yield process
        finally:
            process.kill()


class Terminal:
    """A command at a terminal, where somebody types and looks."""

    def __init__(self, *words: str) -> None:
        self._ours, its = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(
            command(*words),
            stdin=its,
            stdout=its,
            stderr=its,
            env=environment,
            start_new_session=True,
            preexec_fn=_take_the_terminal,
        )
        os.close(its)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until this was shown."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), f"it ended before it showed {text!r}: {self.shown}"

    def end(self) -> int:
        """Read what is still shown, and return the exit status."""
        while self._read():
            pass
        return self.process.wait(LONGEST_SECONDS)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], LONGEST_SECONDS)[0]:
            return False
        try:
            chunk = os.read(self._ours, 65_536)
        except OSError:  # Linux answers a read after the end with an error
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)


def _take_the_terminal() -> None:
    """In the child: only the terminal that a session belongs to turns Ctrl-C into a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
