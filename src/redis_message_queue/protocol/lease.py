"""How a lease stays alive while its handler works, and how its loss becomes known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from redis_message_queue.events import EventOperation, EventOutcome
from redis_message_queue.options import QueueOptions
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.port import Pause, Runtime
from redis_message_queue.protocol.tell import Teller, log

Renew = Callable[[Claim, float, Callable[[], bool]], Awaitable[bool]]


@dataclass(slots=True, eq=False)
class Lease:
    """What this process knows of its hold on a message, by its own monotonic clock."""

    claim: Claim
    length: float | None  # None: held for good
    port: Runtime
    started: float
    refused: bool = False
    over: bool = False  # the delivery has ended, and nobody needs the lease any more

    @property
    def left(self) -> float:
        """How long it surely lasts: the server started it no earlier than our request left."""
        return float("inf") if self.length is None else self.started + self.length - self.port.now()

    @property
    def lost(self) -> bool:
        return self.refused or self.left <= 0


class Heartbeat:
    """Renews one lease until it is told to stop, the lease is lost, or the handler has had its time."""

    def __init__(self, lease: Lease, renew: Renew, options: QueueOptions, teller: Teller) -> None:
        self._lease = lease
        self._renew = renew
        self._options = options
        self._teller = teller

    async def beat(self, pause: Pause) -> None:
        """The life of a heartbeat, in a thread or a task of its own."""
        interval = self._options.heartbeat_interval_seconds
        assert interval is not None
        while not await pause(interval):
            if self._has_had_its_time():
                log.warning("a handler exceeded max_processing_seconds; its lease is no longer renewed")
                await self._tell(EventOperation.LEASE_RENEW, EventOutcome.SKIPPED)
                return
            if not await self._renew_once(pause):
                return

    def _has_had_its_time(self) -> bool:
        limit = self._options.max_processing_seconds
        return limit is not None and self._lease.port.now() - self._lease.claim.claimed_at >= limit

    async def _renew_once(self, pause: Pause) -> bool:
        lease, sent_at = self._lease, self._lease.port.now()
        try:
            renewed = await self._renew(lease.claim, max(0.0, lease.left), lambda: lease.over)
        except Exception as error:
            if not await pause(0):
                log.warning("a heartbeat could not renew its lease: %s", type(error).__name__)
                await self._tell(EventOperation.LEASE_RENEW, EventOutcome.FAILURE, error)
                await self._say_failed()
            return False
        if renewed:
            lease.started = sent_at
            await self._tell(EventOperation.LEASE_RENEW)
            return True
        if not await pause(0):  # a message that was settled meanwhile has no lease to lose
            lease.refused = True
            log.warning("a lease was lost to another consumer while its handler was running")
            await self._tell(EventOperation.STALE_LEASE_RENEW, EventOutcome.SKIPPED)
            await self._say_failed()
        return False

    async def _tell(
        self,
        operation: EventOperation,
        outcome: EventOutcome = EventOutcome.SUCCESS,
        error: Exception | None = None,
    ) -> None:
        await self._teller.tell(operation, outcome, claim=self._lease.claim, error=error)

    async def _say_failed(self) -> None:
        if self._options.on_heartbeat_failure is not None:
            await self._teller.call(self._options.on_heartbeat_failure, what="on_heartbeat_failure")
