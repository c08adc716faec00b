"""One tenant's line, for the blocking shell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from redis_message_queue.envelope import tenant_name
from redis_message_queue.process_bound import ProcessBound
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol


class Tenant(ProcessBound):
    """What one client of a shared queue has to do with it."""

    def __init__(self, protocol: QueueProtocol, name: str) -> None:
        tenant_name(name)
        self.name = self._tenant = name
        self._protocol = protocol

    def publish(
        self, message: str | dict[str, Any], *, delay_seconds: float | None = None, at: datetime | None = None
    ) -> bool:
        """Put a message into this tenant's line. False if deduplication suppressed it."""
        outbox = self._protocol.outbox
        return finish(outbox.publish(message, tenant=self.name, delay_seconds=delay_seconds, at=at))

    def publish_many(
        self,
        messages: Iterable[str | dict[str, Any]],
        *,
        delay_seconds: float | None = None,
        at: datetime | None = None,
    ) -> list[bool]:
        """Put many messages into this tenant's line, in their order."""
        outbox = self._protocol.outbox
        return finish(outbox.publish_many(messages, tenant=self.name, delay_seconds=delay_seconds, at=at))

    def length(self) -> int:
        """How many of its messages wait; delayed ones and those being handled are not among them."""
        return finish(self._protocol.operator.length_of_line(self.name))

    def exists(self) -> bool:
        """Whether any of its messages waits."""
        return self.length() > 0

    def delete(self) -> int:
        """Remove what waits, and say how many messages that were; delayed ones and those being handled stay."""
        return finish(self._protocol.operator.delete_line(self.name))
