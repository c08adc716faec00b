"""Builds the sdist and the wheel, and runs the install commands of the documentation in fresh environments.

python -m tests.package           the commands of the README and the tutorial, and those that need no clone
python -m tests.package --full    all commands of all pages, with Spark, which is about 1 GB
"""

import argparse
import email
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.docs.pages import IGNORED, ROOT, name_of, pages

AUTHOR = "redis-exact-queue developers"
# Waiting for the index takes longer than the work.
AT_ONCE = 4
ROUND_TRIP = """
from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
with EmbeddedRedis() as server:
    queue = RedisMessageQueue("orders", client=server.client(decode_responses=True))
    assert queue.publish("hello")
    with queue.process_message() as message:
        assert message == "hello"
"""
# What each extra is for. An environment in which this fails was not installed as the page says.
WORKS = {
    "": "from redis_message_queue import RedisMessageQueue; import redis_message_queue.asyncio",
    "server": ROUND_TRIP,
    "cli": "from redis_message_queue.cli.program import run",
    "metrics": (
        "from redis_message_queue.metrics.prometheus import QueueMetrics\n"
        "from redis_message_queue.metrics.opentelemetry import QueueMeter, QueueTracing"
    ),
    "testing": "import pytest, pytest_redis_message_queue, redis_message_queue.testing" + ROUND_TRIP,
    "spark": "from redis_message_queue.spark import session; session('trial').stop()",
    "dashboard": "import uvicorn; from redis_message_queue.dashboard import Dashboard",
}
WORKS["all"] = "\n".join(WORKS[extra] for extra in ("server", "cli", "metrics", "dashboard"))
WORKS["all-spark"] = "\n".join(WORKS[extra] for extra in ("all", "spark"))
# Where people begin. Other pages show the same commands with other extras.
FIRST_PAGES = ("README.md", "docs/tutorial/first-queue.md")
_COMMAND = re.compile(r"(?:^|`)(?P<command>pip\s+install\s+[^`\n#]*(?:\n[^`\n#]+(?=`))?)", re.MULTILINE)
_EXTRAS = re.compile(r"^(?:\.|redis-exact-queue)(?:\[(?P<extras>[\w,-]+)\])?$")
# A call such as `Queue[Order]("orders", client=client)` is none.
_RELATIVE_LINK = re.compile(r"\]\((?!https?://)[^)\s]*\)")


class PackageError(Exception):
    """Something that a user would stumble over."""


@dataclass(frozen=True)
class Install:
    """An install command of the documentation."""

    words: tuple[str, ...]  # without `pip install`
    pages: tuple[str, ...]

    @property
    def extras(self) -> list[str]:
        """The extras of ours that it names; an empty name if it names none."""
        found = [match["extras"] for word in self.words if (match := _EXTRAS.match(word))]
        return [extra for extras in found for extra in (extras or "").split(",")]

    @property
    def always_run(self) -> bool:
        return any(page in FIRST_PAGES for page in self.pages) or not self.from_clone

    @property
    def from_clone(self) -> bool:
        return any(word.startswith(".") for word in self.words)

    def __str__(self) -> str:
        return f"pip install {shlex.join(self.words)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.package", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="run the install commands of all pages")
    full = parser.parse_args(arguments).full
    with tempfile.TemporaryDirectory(prefix="package-") as name:
        home = Path(name)
        sdist, wheel = build(home / "dist")
        unpacked = unpack(sdist, home)
        checks: list[tuple[str, Callable[[], object]]] = [
            (f"{sdist.name} has every file of the repository, and the contract", lambda: check_files(unpacked)),
            (f"{wheel.name} has what an index shows", lambda: check_metadata(wheel)),
            ("make help and make docs in the unpacked sdist", lambda: check_make(unpacked)),
            (f"pip install {wheel.name}", lambda: check_wheel(wheel, home / "wheel")),
        ]
        for number, install in enumerate(install for install in installs() if full or install.always_run):
            place = home / f"environment-{number}"
            checks.append((f"{install} ({install.pages[0]})", partial(check_install, install, place, unpacked)))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return 0 if all(list(pool.map(lambda check: passes(*check), checks))) else 1


def passes(name: str, check: Callable[[], object]) -> bool:
    started = time.monotonic()
    try:
        check()
    except (PackageError, subprocess.CalledProcessError) as error:
        print(f"FAILED {name}\n{error}\n{getattr(error, 'output', '')}", flush=True)
        return False
    print(f"ok     {name} ({time.monotonic() - started:.0f} s)", flush=True)
    return True


def build(directory: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    run([sys.executable, "-m", "build", "--outdir", str(directory), str(ROOT)])
    return next(directory.glob("*.tar.gz")), next(directory.glob("*.whl"))


def unpack(sdist: Path, directory: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    return directory / sdist.name.removesuffix(".tar.gz")


def check_files(unpacked: Path) -> None:
    """The sdist has what git has, and the contract, which the build writes."""
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT).splitlines()
    kept = [name for name in listed if (ROOT / name).exists()]
    missing = [name for name in [*kept, name_of(IGNORED)] if not (unpacked / name).exists()]
    if missing:
        raise PackageError(f"the sdist lacks {missing}")


def check_metadata(wheel: Path) -> None:
    """An author, a licence, no links into nowhere."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    metadata = email.message_from_string(text)
    if metadata["Author"] != AUTHOR or metadata["License-Expression"] != "MIT" or metadata["Project-URL"]:
        raise PackageError("the author, the licence or the project URLs are not as agreed")
    if links := _RELATIVE_LINK.findall(str(metadata.get_payload())):
        raise PackageError(f"the description has links that no index can follow: {links}")
    offered = {"", *(metadata.get_all("Provides-Extra") or [])}
    if unknown := {extra for install in installs() for extra in install.extras} - offered:
        raise PackageError(f"the documentation names extras that do not exist: {unknown}")
    outside = [name for name in names if not re.match(r"redis_message_queue/|(pyspark|pytest)_redis|redis_exact", name)]
    if outside or "redis_message_queue/py.typed" not in names:
        raise PackageError(f"the wheel has files that it should not have, or lacks py.typed: {outside}")


def check_make(unpacked: Path) -> None:
    """With the tools of this environment and the files of the sdist."""
    tools = Path(sys.prefix)
    environment = os.environ | {"PYTHONPATH": f"{unpacked / 'src'}{os.pathsep}{unpacked}"}
    if "make docs" not in run(["make", "help"], cwd=unpacked, env=environment):
        raise PackageError("make help does not list make docs")
    made = ["make", "docs", f"VENV={tools}", "--assume-old", f"{tools}/.installed"]
    said = run(made, cwd=unpacked, env=environment)
    if "written" in said:
        raise PackageError(f"reference pages in the sdist were out of date\n{said}")


def check_wheel(wheel: Path, place: Path) -> None:
    python = fresh(place)
    pip(python, [f"{wheel}[server,cli]"], place)
    run([str(python), "-W", "error", "-c", WORKS["server"]], cwd=place)
    run([str(python.with_name("rmq")), "--version"], cwd=place)


def check_install(install: Install, place: Path, clone: Path) -> None:
    """Run the command as it is shown, in a clone and a fresh environment, and use what it installed."""
    python = fresh(place)
    # An error of the library asks for an extra of what is installed already.
    if not install.from_clone:
        pip(python, ["."], clone)
    pip(python, install.words, clone)
    for extra in install.extras:
        run([str(python), "-W", "error", "-c", WORKS[extra]], cwd=place)


def fresh(place: Path) -> Path:
    """The interpreter of a new environment, which has no pip: ours installs into it, which saves seconds."""
    run([sys.executable, "-m", "venv", "--without-pip", str(place)])
    return place / "bin" / "python"


def pip(python: Path, words: Sequence[str], directory: Path) -> None:
    before = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "-q"]
    # Compiling would only take time: each environment is used once.
    run([*before, "--no-compile", *words], cwd=directory)


def run(command: Sequence[str], cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """What it prints. Without our own PYTHONPATH, unless `env` has one: a fresh environment must do by itself."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} if env is None else env
    ended = subprocess.run(command, cwd=cwd, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        raise subprocess.CalledProcessError(ended.returncode, shlex.join(command), ended.stdout)
    return ended.stdout


def installs() -> list[Install]:
    """The install commands of the documentation, each once, with the pages that show it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for page in [*pages(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for words in commands_in(page.read_text(encoding="utf-8")):
            found.setdefault(words, []).append(name_of(page))
    return [Install(words, tuple(shown)) for words, shown in found.items()]


def commands_in(text: str) -> Iterator[tuple[str, ...]]:
    for match in _COMMAND.finditer(text):
        words = tuple(shlex.split(match["command"]))[2:]
        # `pip install -U ...` of another package is advice for an environment that has it already.
        if any(_EXTRAS.match(word) for word in words):
            yield words


if __name__ == "__main__":
    sys.exit(main())
