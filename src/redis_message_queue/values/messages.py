"""Messages as handlers and operators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """The record of a message, for operators. Fields that are not known are None."""

    payload: str | bytes | None = None
    id: str | None = None
    tenant: str | None = None
    delivery_count: int | None = None
    published_at: datetime | None = None
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    due_at: datetime | None = None
    reason: str | None = None
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None
    replay_of: str | None = None
    headers: Mapping[str, str] | None = field(default=None, hash=False)
    state: str | None = None
    consumer: str | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """One thing that happened to a message, from the journal of its queue."""

    event: str
    at: datetime | None = None
    tenant: str | None = None
    consumer: str | None = None
    details: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of submitting a message."""

    id: str
    accepted: bool
    duplicate_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule of a queue: what it publishes, and when.

    ``last_tick`` is the last tick that has a message. ``error`` says why a schedule cannot be followed; then the other
    fields may be None.
    """

    name: str
    cron: str | None = None
    every_seconds: float | None = None
    timezone: str | None = None
    payload: str | bytes | None = None
    tenant: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    missed: str | None = None
    created_at: datetime | None = None
    last_tick: datetime | None = None
    next_tick: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """How many messages a queue has, by where they are."""

    pending: int
    processing: int
    delayed: int
    completed: int
    failed: int
    dead_letters: int
    tenants: int
    oldest_pending_seconds: float | None
    paused: bool = False
    paused_tenants: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedWorker:
    """A process that runs a consumer loop on a queue, whether it has work or not.

    ``consumer`` is what `MessageRecord.consumer` says of its messages: ``name@host:pid``, or ``host:pid``.
    """

    consumer: str
    name: str | None = None
    host: str
    pid: int
    version: str
    concurrency: int
    since: datetime
    last_claim: datetime | None = None
    lease_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a message is not done, or what became of it: in one sentence, and with the facts behind that.

    ``cause`` is one word for programs: ``waiting``, ``paused``, ``tenant_paused``, ``tenant_limit``, ``no_worker``,
    ``cancelled``, ``delayed``, ``overdue``, ``retry``, ``in_flight``, ``lease_ended``, ``acknowledged``, ``failed``,
    ``dead_letter``, ``expired``, ``discarded``, ``dropped``, ``duplicate`` or ``unknown``.
    """

    id: str
    cause: str
    sentence: str
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredQueue:
    """A queue of a server, as its registry names it."""

    name: str
    key_separator: str = "::"
    dead_letter_queue: str | None = None
    partitions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveSummary:
    """The result of a redrive."""

    matched: int
    redriven: int
    suppressed: int


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A leased message of a custom gateway: what is stored, and the token of its lease."""

    stored_message: str | bytes
    lease_token: str


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def moment(seconds: float) -> datetime:
    """A time of the server's clock, as people read it; a damaged one is the first or the last time that there is."""
    if seconds != seconds or seconds <= _FIRST.timestamp():
        return _FIRST
    return datetime.fromtimestamp(seconds, UTC) if seconds < _LAST.timestamp() else _LAST
