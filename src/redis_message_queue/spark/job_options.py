"""The options of the jobs, each declared once, as those of the Spark format are."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from redis_message_queue.protocol.operate.condition import RECORD, Condition, Kind, condition
from redis_message_queue.spark.options import (
    CheckedOptions,
    PublishOptions,
    QueueAddress,
    declared_options,
    one_of,
    seconds_or_zero,
)
from redis_message_queue.spark.time_options import check_time, parse_time
from redis_message_queue.values.checks import flag, number, text, whole_number
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.values.plain_values import brief


@dataclass(frozen=True)
class Window:
    """The times that a report is about. Without a bound it begins or ends with the archive."""

    since: datetime | None = None
    until: datetime | None = None


FileFormat = Literal["json", "text", "csv", "parquet", "table"]
_DAY_SECONDS = 86_400.0


def _mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigurationTypeError(f"{name} must be a mapping, not {type(value).__name__}")
    for one, setting in value.items():
        if not isinstance(one, str) or not isinstance(setting, str):
            raise ConfigurationTypeError(f"{name} must have texts as names and values, but has {one!r}")


_ArchivePath = Annotated[str, text, "The archive: a directory, or a URL such as s3://, gs:// or abfss://."]
_ArchivedQueue = Annotated[str, text, "The name of the queue."]
_StorageOptions = Annotated[
    Mapping[str, str],
    _mapping,
    "Options of the object store, such as aws_region, for the tables and their files. Default: the environment.",
]


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(QueueAddress):
    """The options of `archive`."""

    path: _ArchivePath
    storage_options: _StorageOptions = field(default_factory=dict, repr=False)
    partition_rows: Annotated[int, whole_number, "How many journal entries one task reads."] = 100_000
    segment_rows: Annotated[int, whole_number, "How many journal entries one step commits."] = 2_000_000
    inventory: Annotated[
        bool, flag, "Read the ids of all messages in the queue, so that the report can tell which are missing."
    ] = True


@dataclass(frozen=True, kw_only=True)
class CompactOptions(CheckedOptions):
    """The options of `compact`."""

    path: _ArchivePath
    queue: _ArchivedQueue
    storage_options: _StorageOptions = field(default_factory=dict, repr=False)
    target_bytes: Annotated[int, whole_number, "Merge files up to this size."] = 256 * 1024 * 1024
    keep_days: Annotated[
        int | None, whole_number, "Delete what is older than this many days. Without it, everything is kept."
    ] = None
    grace_seconds: Annotated[
        float,
        seconds_or_zero,
        "How long files that were replaced are kept, for readers that still use them. Archive runs must be shorter.",
    ] = 7 * _DAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(CheckedOptions):
    """The options of `refresh`."""

    path: _ArchivePath
    queue: _ArchivedQueue
    storage_options: _StorageOptions = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class AcknowledgeOptions(RefreshOptions):
    """The options of `acknowledge`."""

    reason: Annotated[str, text, "What happened, and why that is accounted for. Later reports show it."]


def _zone(name: str, value: Any) -> None:
    text(name, value)
    try:
        ZoneInfo(value)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise ConfigurationError(
            f"{name} must be the name of a time zone such as Europe/Vienna, not {brief(value)}"
        ) from None


def window_of(since: str | datetime | None, until: str | datetime | None) -> Window:
    """Return the window between two times.

    Raises:
        ConfigurationError: It ends before it begins.
    """
    now = datetime.now(UTC)
    first = None if since is None else parse_time("since", since, now)
    last = None if until is None else parse_time("until", until, now)
    if first is not None and last is not None and last <= first:
        raise ConfigurationError(f"until must be later than since, but {last} is not later than {first}")
    return Window(first, last)


def _names(name: str, value: Any) -> None:
    if not isinstance(value, tuple | list):
        raise ConfigurationTypeError(f"{name} must be a list of names, not {type(value).__name__}")
    for one in value:
        text(name, one)


@dataclass(frozen=True, kw_only=True)
class _ReportedTimes(CheckedOptions):
    """The options that `report` and `overview` share."""

    path: _ArchivePath
    output: Annotated[str, text, "The directory to write the report to."]
    storage_options: _StorageOptions = field(default_factory=dict, repr=False)
    since: Annotated[
        Any | None,
        check_time,
        "Report on what happened from this time on: a datetime, 2026-09-21, 2026-09-21T08:00 (UTC), a time "
        "ago such as 24h or 7d, today or yesterday. The verdict is about all that is archived.",
    ] = None
    until: Annotated[Any | None, check_time, "Report on what happened before this time, written like since."] = None
    timezone: Annotated[
        str | None, _zone, "The time zone of the page, such as Europe/Vienna. Default: that of this machine."
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.window()

    @property
    def zone(self) -> tzinfo | None:
        """The time zone of the page."""
        return None if self.timezone is None else ZoneInfo(self.timezone)

    def window(self) -> Window:
        """The times that the report is about.

        Raises:
            ConfigurationError: It ends before it begins.
        """
        return window_of(self.since, self.until)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(_ReportedTimes):
    """The options of `report`."""

    queue: _ArchivedQueue


@dataclass(frozen=True, kw_only=True)
class OverviewOptions(_ReportedTimes):
    """The options of `overview`."""

    queues: Annotated[Any, _names, "The names of the queues. Without it: all that are archived."] = ()


def _where(name: str, value: Any) -> None:
    from pyspark.sql import Column

    if not isinstance(value, str | Column):
        raise ConfigurationTypeError(f"{name} must be a condition or a Column, not {type(value).__name__}")


# The fields that a condition can use. An archived message has no `claimed_at`.
LETTER_FIELDS = {name: kind for name, kind in RECORD.items() if name != "headers"}
ARCHIVE_FIELDS = {name: kind for name, kind in LETTER_FIELDS.items() if name != "claimed_at"} | {
    "state": Kind.TEXT,  # the last event of the message, such as 'acked' or 'dead'
    "failures": Kind.NUMBER,
}


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(PublishOptions):
    """The options of `replay`. `queue` is where the messages were."""

    archive: Annotated[
        str | None, text, "Select among the messages of the archive at this path, instead of the dead letters."
    ] = None
    storage_options: _StorageOptions = field(default_factory=dict, repr=False)
    since: Annotated[
        Any | None, check_time, "Select archived messages that ended from this time on, written as for report."
    ] = None
    until: Annotated[Any | None, check_time, "Select archived messages that ended before this time."] = None
    where: Annotated[
        Any | None,
        _where,
        "Select the messages for which this condition holds: the language of `rmq redrive --where`, never SQL. In "
        "Python it may be a Column.",
    ] = None
    again: Annotated[
        bool, flag, "Publish messages again that were replayed before. Without it, a message is replayed once."
    ] = False
    name: Annotated[
        str | None,
        text,
        "A name for a replay with `again`: under one name each message is published once, so that you can repeat a "
        "run that was interrupted.",
    ] = None
    into: Annotated[str | None, text, "Publish into this queue instead."] = None
    limit: Annotated[int | None, whole_number, "Replay at most this many messages, the oldest first."] = None
    rate: Annotated[float | None, number, "Publish at most this many messages a second."] = None
    dry_run: Annotated[bool, flag, "Count the selected messages and show some ids, but publish nothing."] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.archive is None and (self.since is not None or self.until is not None):
            raise ConfigurationError("since and until are for archived messages; give archive too, or leave them out")
        self.window()
        if self.name is not None and not self.again:
            raise ConfigurationError("name is for a replay with again, which is not set. Set it, or leave name out.")
        _ = self.condition  # raises for a condition that cannot be read

    def window(self) -> Window:
        """The times in which selected messages have ended."""
        return window_of(self.since, self.until)

    @property
    def condition(self) -> Condition | None:
        """The parsed ``where``, if it is text."""
        if not isinstance(self.where, str):
            return None
        return condition(self.where, LETTER_FIELDS if self.archive is None else ARCHIVE_FIELDS, option="where")

    @functools.cached_property
    def key_prefix(self) -> str:
        """What the deduplication keys of this replay start with: the id of a message follows."""
        repetition = "" if not self.again else self.name or uuid.uuid4().hex
        return f"replay:{digest(self.queue, self.target.queue, repetition)}:"

    @property
    def target(self) -> PublishOptions:
        """Where to publish. Another queue may be in another slot than these dead letters, so they are left out."""
        given = {name: getattr(self, name) for name in declared_options(PublishOptions)}
        partitions = self.partitions if self.into is None else None
        return PublishOptions(
            **given | {"queue": self.into or self.queue, "dead_letter_queue": None, "partitions": partitions}
        )


@dataclass(frozen=True, kw_only=True)
class BackfillOptions(PublishOptions):
    """The options of `backfill`."""

    source: Annotated[str, text, "The files to read, by a path or a pattern, or the name of a table."]
    format: Annotated[
        FileFormat,
        one_of(FileFormat),
        "The format of the source: json (a value in each line), text (a payload in each line), csv, parquet or table.",
    ]
    payload_column: Annotated[
        str | None,
        text,
        "The column with the payloads. Without it the payload is the line as it is, or the whole row as a JSON object.",
    ] = None
    dedup_key_column: Annotated[
        str | None,
        text,
        "The column with the deduplication keys. Without it, it is kept how many rows of each file are published.",
    ] = None
    tenant_column: Annotated[str | None, text, "The column with the tenants."] = None
    schema: Annotated[str | None, text, 'The columns as Spark writes them: "id bigint, name string".'] = None
    reader_options: Annotated[Mapping[str, str], _mapping, "Options of Spark's own reader for this format."] = field(
        default_factory=dict
    )
    name: Annotated[str | None, text, "The name under which progress is kept. Without it: the source."] = None
    files_per_step: Annotated[int, whole_number, "After how many files progress is saved."] = 32
    restart: Annotated[bool, flag, "Read files again that an earlier run has finished."] = False

    @property
    def label(self) -> str:
        """What the progress and the deduplication keys of this backfill are kept under."""
        return digest(self.name or self.source, self.format)


def digest(*parts: str) -> str:
    """Return a short name for a list of texts. Different lists have different names."""
    return hashlib.sha256("".join(f"{len(one)}:{one}" for one in parts).encode()).hexdigest()[:32]
