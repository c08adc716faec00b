"""How leases stay alive while their handler works, and how their loss becomes known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from redis_message_queue.errors import RetryBudgetExhaustedError
from redis_message_queue.events import EventOperation, EventOutcome
from redis_message_queue.options import QueueOptions
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.port import Pause, Runtime
from redis_message_queue.protocol.tell import Teller, log, named

Renew = Callable[[Sequence[Claim], float, Callable[[], bool]], Awaitable[list[bool]]]


class Lease:
    """What this process knows of its hold on messages, by its own monotonic clock."""

    def __init__(self, length: float | None, port: Runtime) -> None:
        self.port = port
        self.over = False  # the delivery has ended, and nobody needs the lease any more
        self.stays_open = False  # more messages will come under it
        self._length = length  # None: held for good
        self._started: dict[Claim, float] = {}
        self._begun: dict[Claim, float] = {}  # since when a handler has been at work
        self._refused: set[Claim] = set()
        self._settling: set[Claim] = set()

    def add(self, claims: Iterable[Claim], *, waiting: bool = False) -> None:
        """The server started their leases no earlier than our request left. Some wait for a handler."""
        for claim in claims:
            self._started[claim] = claim.claimed_at
            if not waiting:
                self._begun[claim] = claim.claimed_at

    def begin(self, claims: Iterable[Claim]) -> None:
        """A handler gets them now."""
        for claim in claims:
            self._begun[claim] = self.port.now()

    def finish(self, claims: Iterable[Claim]) -> None:
        """Their handler is done; they are held until they are settled."""
        for claim in claims:
            self._begun.pop(claim, None)

    def worked_on(self, claim: Claim) -> float:
        """For how long a handler has had it."""
        now = self.port.now()
        return now - self._begun.get(claim, now)

    def left(self, claim: Claim) -> float:
        """How long it surely lasts; nothing for a message that is not held any more."""
        if self._length is None:
            return float("inf")
        return self._started.get(claim, float("-inf")) + self._length - self.port.now()

    @property
    def held(self) -> list[Claim]:
        """What is still to be renewed."""
        return list(self._started)

    @property
    def has_losses(self) -> bool:
        """Whether a renewal was ever refused."""
        return bool(self._refused)

    def is_lost(self, claim: Claim) -> bool:
        return claim in self._refused or (claim in self._started and self.left(claim) <= 0)

    def renewed(self, claims: Iterable[Claim], sent_at: float) -> None:
        for claim in claims:
            if claim in self._started:
                self._started[claim] = sent_at

    def refuse(self, claim: Claim) -> None:
        """Another consumer has this one."""
        self._refused.add(claim)
        self.release([claim])

    def release(self, claims: Iterable[Claim]) -> None:
        """These need no lease any more."""
        for claim in claims:
            self._started.pop(claim, None)
            self._begun.pop(claim, None)

    @contextmanager
    def settling(self, claim: Claim) -> Iterator[None]:
        """While it is being settled, whether it can be renewed says nothing. After an error it is held as before."""
        started, begun = self._started.pop(claim, None), self._begun.pop(claim, None)
        self._settling.add(claim)
        try:
            yield
        except BaseException:
            if started is not None:
                self._started[claim] = started
            if begun is not None:
                self._begun[claim] = begun
            raise
        finally:
            self._settling.discard(claim)

    @property
    def may_hold_more(self) -> bool:
        """Whether a heartbeat that has nothing to renew now should go on."""
        return self.stays_open or bool(self._settling)


class Heartbeat:
    """Renews leases until it is told to stop, all are lost or settled, or the handler has had its time.

    A renewal that does not get through is tried again at the next interval, as long as a lease lasts.
    """

    def __init__(self, lease: Lease, renew: Renew, options: QueueOptions, teller: Teller) -> None:
        self._lease = lease
        self._renew = renew
        self._options = options
        self._teller = teller
        self._late: set[Claim] = set()

    async def beat(self, pause: Pause) -> None:
        """The life of a heartbeat, in a thread or a task of its own."""
        interval = self._options.heartbeat_interval_seconds
        assert interval is not None
        while not await pause(interval):
            await self._let_go_of_the_late()
            if not await self._renew_once(pause):
                return

    async def _let_go_of_the_late(self) -> None:
        """A handler that has had its time is hung: its message is for others."""
        limit, held = self._options.max_processing_seconds, self._lease.held
        if limit is None:
            return
        self._late.intersection_update(held)
        late = [claim for claim in held if claim not in self._late and self._lease.worked_on(claim) >= limit]
        if late:
            log.warning("a handler exceeded max_processing_seconds; its lease is no longer renewed")
            self._late.update(late)
            await self._tell(late, EventOperation.LEASE_RENEW, EventOutcome.SKIPPED)

    async def _renew_once(self, pause: Pause) -> bool:
        """Whether there is anything left to do."""
        lease, sent_at = self._lease, self._lease.port.now()
        claims = [claim for claim in lease.held if claim not in self._late]
        if not claims:
            return lease.may_hold_more
        try:
            budget = max(0.0, min(lease.left(claim) for claim in claims))
            renewed = await self._renew(claims, budget, lambda: lease.over)
        except Exception as error:
            goes_on = self._may_get_through(error) and any(lease.left(claim) > 0 for claim in claims)
            if not await pause(0):
                log.warning(
                    "%s: a lease could not be renewed (%s); %s",
                    self._teller.queue,
                    named(error),
                    "the next heartbeat tries again" if goes_on else "its heartbeat ends",
                )
                await self._tell(claims, EventOperation.LEASE_RENEW, EventOutcome.FAILURE, error)
                if not goes_on:
                    await self._say_failed()
            return goes_on or lease.stays_open
        kept = [claim for claim, is_ours in zip(claims, renewed, strict=True) if is_ours]
        lease.renewed(kept, sent_at)
        await self._tell(kept, EventOperation.LEASE_RENEW)
        if len(kept) < len(claims) and not await pause(0):
            # A message that was settled meanwhile has no lease to lose.
            still_held = set(lease.held).difference(kept)
            await self._lose([claim for claim in claims if claim in still_held])
        return bool(kept) or lease.may_hold_more

    def _may_get_through(self, error: Exception) -> bool:
        """Whether another renewal could succeed where this one did not."""
        return isinstance(error, RetryBudgetExhaustedError) or self._lease.port.is_transient(error)

    async def _lose(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._lease.refuse(claim)
        if claims:
            log.warning("a lease was lost to another consumer while its handler was running")
            await self._tell(claims, EventOperation.STALE_LEASE_RENEW, EventOutcome.SKIPPED)
            await self._say_failed()

    async def _tell(
        self,
        claims: Sequence[Claim],
        operation: EventOperation,
        outcome: EventOutcome = EventOutcome.SUCCESS,
        error: Exception | None = None,
    ) -> None:
        for claim in claims if self._teller.wanted else ():
            await self._teller.tell(operation, outcome, claim=claim, error=error)

    async def _say_failed(self) -> None:
        if self._options.on_heartbeat_failure is not None:
            await self._teller.call(self._options.on_heartbeat_failure, what="on_heartbeat_failure")
