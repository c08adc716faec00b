"""Which directories an archive consists of: numbered manifests, each the whole truth, each made in one step.

A file that no manifest names does not exist for a reader. So a run that dies leaves rubbish at worst, and two runs at
once cannot both make the same number: the second one looks again at what the first has made.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from redis_message_queue.errors import ArchiveConflictError, ArchiveError
from redis_message_queue.spark.jobs.files import Files
from redis_message_queue.spark.journal import BEGINNING, StreamId

_FORMAT = 1
_QUEUE = "queue="
_DATE = "date="
_MANIFESTS = "_manifests"
RECORDS = "records"
_KEPT = 1_000  # manifests, for whoever reads while others write
_TRIES = 20

Missing = tuple[int, int]  # the first serial that is missing, and how many are


@dataclass(frozen=True, slots=True)
class Segment:
    """One directory of Parquet files: the entries of a range of serials, all of one date."""

    path: str  # below the queue's directory
    date: str
    first_serial: int
    last_serial: int
    first_id: str
    last_id: str
    rows: int
    missing: tuple[Missing, ...] = ()  # within the range, and between the segment before it and this one


@dataclass(frozen=True, slots=True)
class Kept:
    """One directory with the records of messages that were settled on one date."""

    path: str  # below the queue's directory
    date: str
    rows: int


@dataclass(frozen=True, slots=True)
class Retired:
    """A directory that a compaction has replaced, kept for those who read it still."""

    path: str
    at: float


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages the queue held when its journal had just this serial."""

    serial: int
    pending: int
    processing: int
    delayed: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One state of the archive of one queue."""

    queue: str
    version: int = 0
    segments: tuple[Segment, ...] = ()
    retired: tuple[Retired, ...] = ()
    depth: Depth | None = None
    kept: tuple[Kept, ...] = ()

    @property
    def last_serial(self) -> int:
        return self.segments[-1].last_serial if self.segments else 0

    @property
    def last_id(self) -> StreamId:
        return StreamId.parse(self.segments[-1].last_id) if self.segments else BEGINNING

    @property
    def missing(self) -> list[Missing]:
        """All serials up to the last one that the archive never saw."""
        return [one for segment in self.segments for one in segment.missing]

    def to_json(self) -> bytes:
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Manifest":
        try:
            found: dict[str, Any] = json.loads(text)
            if found.pop("format") != _FORMAT:
                raise ArchiveError("the archive was written by a newer version of this library: update it here")
            segments = (
                Segment(**{**one, "missing": tuple((first, count) for first, count in one["missing"])})
                for one in found.pop("segments")
            )
            kept = (Kept(**one) for one in found.pop("kept"))
            retired = (Retired(**one) for one in found.pop("retired"))
            depth = found.pop("depth")
            return cls(
                segments=tuple(segments),
                kept=tuple(kept),
                retired=tuple(retired),
                depth=Depth(**depth) if depth else None,
                **found,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError("a manifest of the archive cannot be read: it is not one of this library") from error


class Ledger:
    """The manifests of one queue's archive."""

    def __init__(self, files: Files, queue: str) -> None:
        self.files = files
        self.queue = queue
        self.directory = f"{_QUEUE}{quote(queue, safe='')}"

    def read(self) -> Manifest:
        """The newest state; an empty one if there is no archive yet."""
        for _ in range(_TRIES):
            version = max(self._versions(), default=0)
            if not version:
                return Manifest(self.queue)
            try:
                return Manifest.from_json(self.files.read(self._name(version)))
            except FileNotFoundError:  # so many were made meanwhile that this one is gone
                continue
        raise ArchiveConflictError("the archive changes faster than it can be read: run again", queue=self.queue)

    def commit(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Make the next state from the newest; where another run was faster, from what that one has made."""
        for _ in range(_TRIES):
            now = self.read()
            then = dataclasses.replace(change(now), version=now.version + 1)
            if self.files.create(self._name(then.version), then.to_json()):
                self._forget(then.version - _KEPT)
                return then
        raise ArchiveConflictError("other runs keep changing the archive: run again", queue=self.queue)

    def _versions(self) -> list[int]:
        names = (one.name for one in self.files.list(f"{self.directory}/{_MANIFESTS}"))
        return [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]

    def _name(self, version: int) -> str:
        return f"{self.directory}/{_MANIFESTS}/{version:020}.json"

    def _forget(self, newest: int) -> None:
        """One goes for each that comes; those of a run that died in between are gone over later."""
        if newest > 0:
            for version in self._versions():
                if version <= newest:
                    self.files.remove(self._name(version))

    # -- directories that no reader needs

    def rubbish(self, grace_seconds: float) -> list[str]:
        """Directories that a compaction has replaced, or that a dead run left, older than ``grace_seconds``."""
        manifest, now = self.read(), time.time()
        live = {one.path for one in manifest.segments} | {one.path for one in manifest.kept}
        retired = {one.path: one.at for one in manifest.retired}
        return [
            path
            for path, modified in self._directories()
            if path not in live and now - retired.get(path, modified) >= grace_seconds
        ]

    def _directories(self) -> Iterator[tuple[str, float]]:
        """All that hold Parquet files, with the time of their last change."""
        for above in ("", f"{RECORDS}/"):
            for day in self.files.list(f"{self.directory}/{above}".rstrip("/")):
                if day.name.startswith(_DATE):
                    for one in self.files.list(f"{self.directory}/{above}{day.name}"):
                        yield f"{above}{day.name}/{one.name}", one.modified

    def clean(self, grace_seconds: float) -> int:
        """Remove them; how many there were. Readers that honour the manifests do not notice."""
        found = self.rubbish(grace_seconds)
        for path in found:
            self.files.remove(f"{self.directory}/{path}")
        gone = set(found)
        if any(one.path in gone for one in self.read().retired):
            self.commit(lambda now: dataclasses.replace(now, retired=tuple(_without(now.retired, gone))))
        return len(found)


def retired(paths: Iterable[str]) -> tuple[Retired, ...]:
    """Directories that were replaced just now."""
    return tuple(Retired(path, time.time()) for path in paths)


def _without(retired: Iterable[Retired], gone: set[str]) -> Iterable[Retired]:
    return (one for one in retired if one.path not in gone)


def queues_in(files: Files) -> list[str]:
    """The queues that have an archive here."""
    return [unquote(one.name[len(_QUEUE) :]) for one in files.list("") if one.name.startswith(_QUEUE)]
