"""Runs `rmq` in a pseudo-terminal, and types into it."""

from __future__ import annotations

import os
import pty
import select
import sys
import time

from tests.fork_server import Program, take_the_terminal

LONGEST_SECONDS = 120


class Terminal:
    """A process of its own, with the terminal's end in our hands."""

    def __init__(self, *words: str, columns: int = 120) -> None:
        self._ours, its = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
        self.process = Program(
            [sys.executable, "-W", "error", "-m", "redis_message_queue", *words],
            stdin=its,
            stdout=its,
            stderr=its,
            env=environment,
            start_new_session=True,
            preexec_fn=take_the_terminal,
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

    def interrupt(self) -> int:
        """Press Ctrl-C until it is noticed, as people do; the exit status.

        Python does not notice a signal that comes just before it begins to wait for a line, until the next one. Once
        it has answered with a new line it is ending, and one more signal could kill it on the way.
        """
        deadline, before = time.monotonic() + LONGEST_SECONDS, len(self.shown)
        while self.process.poll() is None and time.monotonic() < deadline and "\n" not in self.shown[before:]:
            self.type("\x03")
            self._read_for(1.0)
        return self.end()

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

    def _read_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def _read(self, seconds: float = LONGEST_SECONDS) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        try:
            chunk = os.read(self._ours, 65_536)
        except OSError:  # Linux answers a read after the end with an error
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)
