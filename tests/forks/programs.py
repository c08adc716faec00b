"""Runs programs of this directory as separate processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fork_server import Program

HERE = Path(__file__).parent
# Each program ends itself earlier than this.
LIMIT_SECONDS = 130


@contextlib.contextmanager
def running(name: str, *arguments: object) -> "Iterator[subprocess.Popen[str]]":
    """A program with all its children in one session, so that none is left behind."""
    command = [sys.executable, "-W", "error", "-u", str(HERE / name), *map(str, arguments)]
    process = Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_SECONDS)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def output_of(process: "subprocess.Popen[str]") -> str:
    """The output of the program, which must succeed."""
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, errors) == (0, ""), f"ended with {process.returncode}:\n{errors}\n{output}"
    return output


def run(name: str, *arguments: object) -> str:
    """The output of a program that ends by itself."""
    with running(name, *arguments) as process:
        return output_of(process)
