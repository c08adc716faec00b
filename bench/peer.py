"""The virtual environment of the peer package."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from shutil import which

from bench.contender import ROOT
from bench.environment import HIREDIS, NoEnvironment, run, works

PEER = "redis-message-queue==8.4.2"
_HOME = ROOT / ".bench" / "peer"
_PYTHONS = ("python3.12", "python3.13", "python3.14")
_RUNS = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))"


def peer_python() -> str:
    """The interpreter of the peer's environment, which the first run creates."""
    python = _HOME / "bin" / "python"
    wanted = [PEER, *_same_client()]
    if not _has(python, wanted):
        run(_interpreter(), "-m", "venv", "--clear", str(_HOME))
        run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
    return str(python)


def _same_client() -> Iterator[str]:
    """The redis-py that this library uses, and the hiredis that it is measured with."""
    yield f"redis=={version('redis')}"
    yield HIREDIS


def _has(python: Path, wanted: list[str]) -> bool:
    check = "import sys; from importlib.metadata import version as v; "
    check += "sys.exit(any(v(p) != n for p, n in (w.split('==') for w in sys.argv[1:])))"
    return works(str(python), "-c", check, *wanted)


def _interpreter() -> str:
    for python in interpreters():
        if works(python, "-c", _RUNS):
            return python
    raise NoEnvironment("it needs Python 3.12 or newer, and none was found")


def interpreters() -> Iterator[str]:
    """Interpreters to try. A name on PATH may be a broken shim, so pyenv's own versions are included."""
    yield sys.executable
    yield from filter(None, map(which, _PYTHONS))
    if which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout.strip()
        yield from map(str, sorted(Path(root).glob("versions/3.1[2-9].*/bin/python")))
