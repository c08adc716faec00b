"""Notices changed files, for `rmq worker --reload`."""

from __future__ import annotations

import os
from collections.abc import Iterable

CHECK_SECONDS = 0.5


class FileWatch:
    """Compares files with how they were when it first heard of them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int] | None] = {}

    def add(self, paths: Iterable[str]) -> None:
        """Watch these as well."""
        for path in paths:
            if path not in self._known:
                self._known[path] = _state(path)

    def changed(self) -> str | None:
        """Return a file that has changed since the last call, or None."""
        found = None
        for path, before in self._known.items():
            now = _state(path)
            if now != before:
                self._known[path], found = now, path
        return found


def _state(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
