"""A message that a handler is working on, with what is known about its delivery."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.stored import headers
from redis_message_queue.values.messages import (
    moment,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from redis_message_queue.protocol.consume.claim import Claim
    from redis_message_queue.protocol.consume.consumer import Consumer

    M = TypeVar("M", default=str | bytes)  # without a codec, as the client decodes
else:  # without the package at run time, and without defaults before Python 3.13
    from typing import TypeVar

    M = TypeVar("M")


class ReceivedMessage(ProcessBound, Generic[M]):
    """A message that a handler is working on, with what is known about its delivery."""

    __slots__ = ("_claim", "_holder", "payload")

    payload: M

    def __init__(self, payload: M, claim: Claim, holder: Consumer) -> None:
        self.payload = payload
        self._claim = claim
        self._holder = holder

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, delivery {self.delivery_count}>"

    @property
    def id(self) -> str:
        """The id of the message: 32 hexadecimal digits, the same in every delivery and every event."""
        return self._claim.message_id

    @property
    def queue(self) -> str:
        """The name of the queue that it was claimed from."""
        return self._holder.queue_name

    @property
    def tenant(self) -> str | None:
        """The tenant that it was published for, or None."""
        return self._claim.envelope.tenant

    @property
    def delivery_count(self) -> int:
        """How often it was delivered, including this time. `max_delivery_count` limits this number."""
        return self._claim.delivery_count or 0

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1, with retries and deliveries after a crash."""
        return self._claim.attempt

    @property
    def published_at(self) -> datetime:
        """When it was published, by the clock of the Redis server, in UTC."""
        return moment(self._claim.envelope.published_at)

    @property
    def replay_of(self) -> str | None:
        """The id of the dead letter that was redriven as this message, or None."""
        return headers.replay_of(self._claim.envelope.extras)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the publisher's ``get_headers`` returned, or an empty dict.

        They are the same in every delivery and after a redrive. Treat them as input, like the payload.
        """
        return headers.decode(self._claim.envelope.extras)

    @property
    def lease_lost(self) -> bool:
        """Whether another consumer may have this message by now. A handler that sees True should stop.

        It is True when a renewal was refused, or when the lease has expired by the clock of this process.
        """
        return self._holder.is_lost(self._claim)

    def json(self) -> Any:
        """Return the payload, parsed as JSON."""
        # Of an object that a codec has decoded: the JSON that it was decoded from.
        return json.loads(self.payload if isinstance(self.payload, str | bytes) else self._claim.envelope.payload)
