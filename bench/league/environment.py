"""The virtual environment of each member, under .league."""

import subprocess
import sys
from pathlib import Path

from bench.contender import ROOT
from bench.environment import NoEnvironment, run, works
from bench.league.members import LIBRARY, Member
from bench.peer import interpreters

HOME = ROOT / ".league"
_INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def bin_of(member: Member) -> Path:
    """The directory of the member's interpreter and commands; the first call creates the environment."""
    home = HOME / "environments" / member.adapter
    python, done = home / "bin" / "python", home / ".installed"
    wanted = "\n".join(member.packages)
    if not (done.exists() and done.read_text() == wanted and works(str(python), "-c", "pass")):
        run(_interpreter(member), "-m", "venv", "--clear", str(home))
        run(str(python), *_INSTALL, *member.packages)
        if member.name == LIBRARY:
            packages = subprocess.run(
                [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            Path(packages, "clone.pth").write_text(f"{ROOT / 'src'}\n")
        done.write_text(wanted)
    return python.parent


def _interpreter(member: Member) -> str:
    if sys.version_info >= member.python:
        return sys.executable
    for python in interpreters():
        check = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {member.python})"
        if works(python, "-c", check):
            return python
    raise NoEnvironment(f"it needs Python {'.'.join(map(str, member.python))} or newer, and none was found")
