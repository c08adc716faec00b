"""What a handler receives."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from redis_message_queue import headers
from redis_message_queue.envelope import Envelope
from redis_message_queue.process_bound import ProcessBound


class Held(Protocol):
    """A message in flight, as the protocol knows it."""

    @property
    def message_id(self) -> str: ...

    @property
    def envelope(self) -> Envelope: ...

    @property
    def attempt(self) -> int: ...

    @property
    def delivery_count(self) -> int | None: ...


class Hold(Protocol):
    """Whoever holds it for the handler."""

    @property
    def queue_name(self) -> str: ...

    def is_lost(self, claim: Any) -> bool: ...

    def complete(self, claim: Any, publish: Sequence[Any]) -> Coroutine[Any, Any, None]: ...


class ReceivedMessage(ProcessBound):
    """A message in the hands of a handler, and what is known about its delivery."""

    __slots__ = ("_claim", "_hold", "payload")

    def __init__(self, payload: str | bytes, claim: Held, hold: Hold) -> None:
        self.payload = payload
        self._claim = claim
        self._hold = hold

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, delivery {self.delivery_count}>"

    @property
    def id(self) -> str:
        """32 hexadecimal digits, the same in every delivery and in the events of this message."""
        return self._claim.message_id

    @property
    def queue(self) -> str:
        """The name of the queue that it came from."""
        return self._hold.queue_name

    @property
    def tenant(self) -> str | None:
        """Whose message it is, if it was published for a tenant."""
        return self._claim.envelope.tenant

    @property
    def delivery_count(self) -> int:
        """How often it has been delivered, this time included."""
        return self._claim.delivery_count or 0

    @property
    def attempt(self) -> int:
        """Which delivery of this message this is, from 1; retries count, and so do deliveries after a crash."""
        return self._claim.attempt

    @property
    def published_at(self) -> datetime:
        """When Redis took it, by the server's clock, in UTC."""
        return moment(self._claim.envelope.published_at)

    @property
    def replay_of(self) -> str | None:
        """The id of the dead message that this one repeats."""
        replayed: str | None = self._claim.envelope.extras.get("replay_of")
        return replayed

    @property
    def headers(self) -> dict[str, str]:
        """What the publisher's ``get_headers`` gave it to travel with; the same in every delivery and after a redrive.

        {} without any. They are input like the payload: anybody who can write to Redis can write them.
        """
        return headers.found_in(self._claim.envelope.extras)

    @property
    def lease_lost(self) -> bool:
        """Whether another consumer may have this message by now: a handler that sees this should stop.

        True when a renewal was refused, and when the lease has run out by this process's own clock.
        """
        return self._hold.is_lost(self._claim)

    def json(self) -> Any:
        """The payload, parsed."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """What an operator sees of a message: where it has been and why. None stands for what is not known."""

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
    replay_of: str | None = None
    headers: Mapping[str, str] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """How many messages are where."""

    pending: int
    processing: int
    delayed: int
    completed: int
    failed: int
    dead_letters: int
    tenants: int
    oldest_pending_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveSummary:
    """What became of the dead letters that were looked at."""

    matched: int
    redriven: int
    suppressed: int


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """What a custom gateway hands over for a message that it has leased: how it is stored, and whose lease it is."""

    stored_message: str | bytes
    lease_token: str


_LAST = datetime.max.replace(tzinfo=UTC)


def moment(seconds: float) -> datetime:
    """A time of the server's clock, as people read it."""
    return datetime.fromtimestamp(seconds, UTC) if seconds < _LAST.timestamp() else _LAST
