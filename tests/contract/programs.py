"""A program in a process of its own, which ends with its test."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fork_server import Program


@contextmanager
def running(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script, in which a warning is an error; what it prints can be read from pipes."""
    process = Program(
        [sys.executable, "-W", "error", "-u", "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
