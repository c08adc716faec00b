"""What a handler receives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(slots=True, eq=False)
class ReceivedMessage:
    """A message in the hands of a handler, and what is known about its delivery."""

    payload: str | bytes
    id: str
    tenant: str | None
    delivery_count: int
    published_at: datetime
    _is_lease_lost: Callable[[], bool] = field(repr=False)

    def json(self) -> Any:
        """The payload, parsed."""
        return json.loads(self.payload)

    @property
    def lease_lost(self) -> bool:
        """Whether another consumer may have this message by now: a handler that sees this should stop.

        True when a renewal was refused, and when the lease has run out by this process's own clock.
        """
        return self._is_lease_lost()


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """What a custom gateway hands over for a message that it has leased: how it is stored, and whose lease it is."""

    stored_message: str | bytes
    lease_token: str


def moment(seconds: float) -> datetime:
    """A time of the server's clock, as people read it."""
    return datetime.fromtimestamp(seconds, UTC)
