"""The two environments in which this library is measured: redis-py with hiredis, and without it."""

import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

from bench.contender import ROOT

HIREDIS = "hiredis==3.2.1"
_HOME = ROOT / ".bench"
_CHECK = "import sys, redis, redis.utils; sys.exit((redis.__version__, str(redis.utils.HIREDIS_AVAILABLE)) != {})"


class NoEnvironment(Exception):
    """An environment could not be made. The text says why."""


def python_of(*, hiredis: bool) -> str:
    """The interpreter of an environment, which the first run creates. It runs the code of this clone."""
    home = _HOME / ("hiredis" if hiredis else "plain")
    python, wanted = home / "bin" / "python", (version("redis"), str(hiredis))
    if not works(str(python), "-c", _CHECK.format(wanted)):
        run(sys.executable, "-m", "venv", "--clear", str(home))
        packages = [f"redis=={version('redis')}", *([HIREDIS] if hiredis else [])]
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
