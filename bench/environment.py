"""The two environments in which this library is measured: redis-py with hiredis, and without it."""

import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

from bench.contender import ROOT

HIREDIS = "hiredis==3.2.1"
# What the extra `speed` installs: in the environment with hiredis only, so that the other one shows what it is without.
_ORJSON = "orjson==3.13.0"
_HOME = ROOT / ".bench"
_CHECK = (
    "import sys, redis, redis.utils; from importlib.util import find_spec; "
    "found = redis.__version__, redis.utils.HIREDIS_AVAILABLE, find_spec('orjson') is not None; sys.exit(found != {})"
)


class NoEnvironment(Exception):
    """An environment could not be made. The text says why."""


def python_of(*, hiredis: bool) -> str:
    """The interpreter of an environment, which the first run creates. It runs the code of this clone."""
    home = _HOME / ("hiredis" if hiredis else "plain")
    python, wanted = home / "bin" / "python", (version("redis"), hiredis, hiredis)
    if not works(str(python), "-c", _CHECK.format(wanted)):
        run(sys.executable, "-m", "venv", "--clear", str(home))
        packages = [f"redis=={version('redis')}", *([HIREDIS, _ORJSON] if hiredis else [])]
        run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        packages_of = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
        (packages_of / "clone.pth").write_text(f"{ROOT / 'src'}\n")
    return str(python)


def works(*command: str) -> bool:
    """Whether the command can be run and succeeds."""
    try:
        return subprocess.run(command, capture_output=True, cwd=ROOT).returncode == 0
    except OSError:
        return False


def run(*command: str) -> None:
    """Run the command; raise with the last line of its errors if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise NoEnvironment((done.stderr.strip().splitlines() or ["its environment could not be created"])[-1])
