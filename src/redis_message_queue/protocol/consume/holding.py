"""What a consumer holds: its leases, the heartbeat that renews them, and the process that they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.lease import Heartbeat, Lease
from redis_message_queue.protocol.port import BackgroundTask
from redis_message_queue.values.errors import ConfigurationError

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

held_without_lease: WeakValueDictionary[bytes, Holding] = WeakValueDictionary()
"""Messages of queues without leases that a handler works on: a purge of orphans must leave them alone."""


class Holding:
    """The hold of one consumer on its messages, from its claim until they are settled."""

    __slots__ = ("__weakref__", "_heartbeat", "_lease", "_process", "_queue", "has_leases")

    def __init__(self, queue: QueueProtocol) -> None:
        self._queue = queue
        self._process = queue.port.process()
        self.has_leases = queue.store.options.message_visibility_timeout_seconds is not None
        self._lease: Lease | None = None
        self._heartbeat: BackgroundTask | None = None

    @property
    def is_forked(self) -> bool:
        """Whether a handler has forked, and this is the child: its parent renews the leases and settles."""
        return self._process != self._queue.port.process()

    def refuse_forked(self, message_id: str, operation: str) -> None:
        """Raise in a forked child: the process that claimed a message settles it."""
        if self.is_forked:
            raise ConfigurationError(
                "this message was claimed in another process, which this one was forked from and which settles it; "
                "leave it to that process, and work with messages that are claimed here",
                queue=self._queue.options.name,
                message_id=message_id,
                operation=operation,
            )

    def lease_for(self, claims: Iterable[Claim]) -> Lease:
        """The lease of these messages, made at first use."""
        if self._lease is None:
            self._lease = Lease(self._queue.store.options.message_visibility_timeout_seconds, self._queue.port)
            self._lease.add(claims)
        return self._lease

    def begin_work_on(self, claims: Iterable[Claim]) -> None:
        """A handler gets these."""
        if not self.has_leases:
            held_without_lease.update((claim.token, self) for claim in claims)

    def end_work_on(self, claims: Iterable[Claim]) -> None:
        """No handler has these any more, however that came about."""
        if not self.has_leases:
            for claim in claims:
                held_without_lease.pop(claim.token, None)

    def start_heartbeat(self, lease: Lease, interval: float | None) -> None:
        """Renew what is held under this lease at this interval; None: never."""
        queue = self._queue
        if interval is not None:
            heartbeat = Heartbeat(lease, interval, queue.store.settler.renew, queue.options, queue.emitter)
            self._heartbeat = queue.port.spawn(heartbeat.beat)

    async def stop_heartbeat(self) -> None:
        """Wait a moment for a renewal that is under way."""
        if self._heartbeat is not None:
            await self._heartbeat.stop()

    def abandon(self) -> None:
        """Stop the heartbeat without waiting for it."""
        if self._heartbeat is not None:
            self._heartbeat.abandon()
        self.end_lease()

    def end_lease(self) -> None:
        """The lease is no longer needed."""
        if self._lease is not None:
            self._lease.over = True
