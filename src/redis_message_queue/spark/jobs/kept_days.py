"""Keeps the figures of days beside a report, so that the next one computes only the days that have changed.

What is kept is used only if it is about the same table and the same files, made by the same version of these figures,
and has the checksum that was noted. A compaction replaces files without changing entries: the log of the table says so.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np

from redis_message_queue.spark.jobs.archive_tables import ArchiveTable, DataFile, Location
from redis_message_queue.spark.jobs.days import Day
from redis_message_queue.spark.jobs.figures import FORMAT
from redis_message_queue.spark.jobs.times import Array
from redis_message_queue.values.errors import ArchiveError

_MANIFEST = "days.json"
_NAME = re.compile(r"\d{4}-\d\d-\d\d-[0-9a-f]{16}\.(day|details|ids)")
_Identity = list[list[Any]]  # path, size and rows of each file


class KeptDays:
    """The days that an earlier report has kept, and those that this one keeps."""

    def __init__(self, place: Location, table: ArchiveTable, queue: str, *, fresh: bool = False) -> None:
        self._place, self._table, self._queue = place, table, queue
        delta = table.open()
        assert delta is not None  # it has files
        self._head = {"format": FORMAT, "queue": queue, "table": str(delta.metadata().id)}
        self._version = delta.version()
        self.remark = ""  # why something that was kept is not used
        self._known = {} if fresh else self._read()
        self._kept: dict[str, dict[str, Any]] = {}

    def _read(self) -> dict[str, dict[str, Any]]:
        """Return the days of the manifest, or none if it is not about this queue, this table and these figures."""
        content = self._place.read(_MANIFEST)
        if content is None:
            return {}
        try:
            found = json.loads(content)
            days: dict[str, dict[str, Any]] = found["days"]
            is_ours = {name: found[name] for name in self._head} == self._head
            is_ours = is_ours and all(_NAME.fullmatch(name) for name in _names(days.values()))
            self._changes = _Changes(self._table, self._queue, int(found["version"]), self._version)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            is_ours = False
        if not is_ours:
            self.remark = "what was kept is of another archive or another version"
            return {}
        return days

    def find(self, date: str, files: Sequence[DataFile]) -> tuple[Day, Array] | None:
        """Return a day and the hashes that are never whole in it, if it is kept and its entries are the same."""
        known = self._known.get(date)
        if known is None:
            return None
        try:
            same = known["files"] == _identity(files) or self._changes.only_rearranged(date, known["files"], files)
            if not same:
                return None
            day = self._load(known)
            never_whole = np.array([int(one) for one in known["never_whole"]], np.uint64)
        except KeptFileError as error:
            self.remark = str(error)
            return None
        self._kept[date] = {**known, "files": _identity(files)}
        return day, never_whole

    def _content(self, name: str, checksum: str) -> bytes:
        content = self._place.read(name)
        if content is None or _checksum(content) != checksum:
            raise KeptFileError(f"{self._place.uri}/{name} is missing, or was changed since it was written")
        return content

    def keep(self, date: str, files: Sequence[DataFile], day: Day, never_whole: Array) -> Day:
        """Write a day. Returns it without what a report rarely needs, which is read when it is."""
        known: dict[str, Any] = {"files": _identity(files), "never_whole": [str(one) for one in never_whole]}
        for kind, content in day.to_bytes().items():
            checksum = _checksum(content)
            known[kind] = [f"{date}-{checksum[:16]}.{kind}", checksum]
            self._place.write(known[kind][0], content)
        self._kept[date] = known
        return self._load(known)

    def _load(self, known: Mapping[str, Any]) -> Day:
        return Day.from_bytes(self._content(*known["day"]), lambda kind: self._content(*known[kind]))

    def forget(self, date: str) -> None:
        """Leave out a day that has to be counted again."""
        self._kept.pop(date, None)

    def save(self) -> None:
        """Note what is kept, and remove what is not."""
        content, used = {**self._head, "version": self._version, "days": self._kept}, set(_names(self._kept.values()))
        self._place.write(_MANIFEST, json.dumps(content, indent=1).encode())
        for name in self._place.names():
            if _NAME.fullmatch(name) and name not in used:
                self._place.delete(name)


class KeptFileError(ArchiveError):
    """A kept file is missing or was changed."""


def _names(days: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in days:
        yield from (one[kind][0] for kind in ("day", "details", "ids"))


def _identity(files: Sequence[DataFile]) -> _Identity:
    return sorted([one.path, one.size, one.rows] for one in files)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Changes:
    """What happened to the files of a queue since a version of its table."""

    def __init__(self, table: ArchiveTable, queue: str, known: int, now: int) -> None:
        self._table, self._queue, self._known, self._now = table, queue, known, now
        self._actions: list[dict[str, Any]] | None = None

    def only_rearranged(self, date: str, known: _Identity, files: Sequence[DataFile]) -> bool:
        """Return whether the files of a day were replaced without a change to their entries."""
        if sum(rows for _, _, rows in known) != sum(one.rows for one in files):
            return False
        paths = {path for path, _, _ in known}
        for action in self._read():
            path = action["path"]
            if "partitionValues" in action and action["partitionValues"] != {"queue": self._queue, "date": date}:
                continue
            if action["is_add"] and action["dataChange"]:
                return False
            if not action["is_add"] and path in paths and action["dataChange"]:
                return False
            paths = paths | {path} if action["is_add"] else paths - {path}
        return paths == {one.path for one in files}

    def _read(self) -> list[dict[str, Any]]:
        if self._actions is None:
            self._actions = []
            for version in range(self._known + 1, self._now + 1):
                self._actions += list(self._commit(version))
        return self._actions

    def _commit(self, version: int) -> Iterator[dict[str, Any]]:
        content = self._table.location.read(f"_delta_log/{version:020}.json")
        if content is None:  # the log was cleaned up
            raise KeptFileError(f"version {version} of the table {self._table.location.uri} is not in its log")
        for line in content.splitlines():
            for kind, action in json.loads(line).items():
                if kind in ("add", "remove"):
                    yield {**action, "path": unquote(action["path"]), "is_add": kind == "add"}
