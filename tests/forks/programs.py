"""Programs of this directory, run by the tests as processes of their own."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# Each program ends itself before that; waiting so long means that it did not.
PATIENCE_SECONDS = 70


@contextlib.contextmanager
def running(name: str, *arguments: object) -> "Iterator[subprocess.Popen[str]]":
    """A program with all of its children in one session, so that none of them is left behind."""
    command = [sys.executable, "-W", "error", "-u", str(HERE / name), *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def output_of(process: "subprocess.Popen[str]") -> str:
    """What it printed before it ended well."""
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (0, ""), f"ended with {process.returncode}:\n{errors}\n{output}"
    return output


def run(name: str, *arguments: object) -> str:
    """The output of a program that ends by itself."""
    with running(name, *arguments) as process:
        return output_of(process)
