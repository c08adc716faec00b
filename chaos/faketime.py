"""A server whose clock can be stepped: libfaketime is loaded into the server process, and into no other."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

from redis_message_queue.embedded import find_server

_PLACES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",  # the Debian package
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)
MISSING = "libfaketime is not installed: run `pip install libfaketime`, or install the Debian package libfaketime"
# How long the server may go on with the old time. Looking at the file at each call would slow down every command.
CACHE_SECONDS = 1


def find_library() -> Path | None:
    """The shared library, from the Python package or from the system."""
    spec = importlib.util.find_spec("libfaketime")
    for directory in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(directory).glob("vendor/libfaketime/src/libfaketime.so.1")):
            return path
    return next((path for place in _PLACES for path in sorted(Path("/").glob(place.lstrip("/")))), None)


class FakeClock:
    """The offset of a server's clock, in a file that libfaketime reads."""

    def __init__(self, directory: Path, library: Path, binary: str) -> None:
        self._file = directory / "clock"
        self.offset = 0
        self.step(0)
        self.program = directory / "server-with-fake-clock"
        settings = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(CACHE_SECONDS),
            # Two names, because the older releases know only the first one.
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
        self.program.write_text(f'#!/bin/sh\nexec env {words} {shlex.quote(find_server(binary).path)} "$@"\n')
        self.program.chmod(0o700)

    def step(self, seconds: int) -> None:
        """Step the clock. The server notices within `CACHE_SECONDS`."""
        self.offset += seconds
        new = self._file.with_suffix(".new")  # replaced as a whole: the server may read it at any moment
        new.write_text(f"{self.offset:+d}\n")
        new.rename(self._file)
