"""Leases: how they are renewed while a handler works, and how their loss is noticed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from logging import WARNING

from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.event_emitter import EventEmitter, named
from redis_message_queue.protocol.port import Pause, Runtime
from redis_message_queue.values.errors import RetryBudgetExhaustedError
from redis_message_queue.values.events import EventOperation, EventOutcome

_SOON_SECONDS = 0.25  # until the next renewal in a partition that did not answer

Renew = Callable[[Sequence[Claim], float, Callable[[], bool]], Awaitable[list[bool]]]


class Lease:
    """What this process knows about the leases of its messages, by its own monotonic clock."""

    def __init__(self, length: float | None, port: Runtime) -> None:
        self.port = port
        self.over = False  # the delivery has ended, and the lease is no longer needed
        self.stays_open = False  # more messages will come under it
        self._length = length  # None: held for good
        self._started: dict[Claim, float] = {}
        self._begun: dict[Claim, float] = {}  # since when a handler has been running
        self._refused: set[Claim] = set()
        self._settling: set[Claim] = set()

    def add(self, claims: Iterable[Claim], *, waiting: bool = False) -> None:
        """Add messages. Their leases started no earlier than the claim was sent. Some wait for a handler."""
        added = {claim: claim.claimed_at for claim in claims}
        self._started.update(added)
        if not waiting:
            self._begun.update(added)

    def begin(self, claims: Iterable[Claim]) -> None:
        """Note that a handler gets these messages now."""
        for claim in claims:
            self._begun[claim] = self.port.now()

    def finish(self, claims: Iterable[Claim]) -> None:
        """Note that their handler is done. They are held until they are settled."""
        for claim in claims:
            self._begun.pop(claim, None)

    def worked_on(self, claim: Claim) -> float:
        """Return how long a handler has had the message."""
        now = self.port.now()
        return now - self._begun.get(claim, now)

    def left(self, claim: Claim) -> float:
        """Return how long the lease lasts at least; negative for a message that is not held any more."""
        if self._length is None:
            return float("inf")
        return self._started.get(claim, float("-inf")) + self._length - self.port.now()

    @property
    def claims(self) -> list[Claim]:
        """The messages whose leases must be renewed."""
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
        """Note that another consumer has this message."""
        self._refused.add(claim)
        self.release([claim])

    def release(self, claims: Iterable[Claim]) -> None:
        """Forget messages that need no lease any more."""
        for claim in claims:
            self._started.pop(claim, None)
            self._begun.pop(claim, None)

    @contextmanager
    def settling(self, claim: Claim) -> Iterator[None]:
        """Do not renew the lease while the message is being settled. After an error it is held as before."""
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
    def is_settling(self) -> bool:
        """Whether a message is being settled, which may fail."""
        return bool(self._settling)

    @property
    def may_hold_more(self) -> bool:
        """Whether a heartbeat that has nothing to renew now should continue."""
        return self.stays_open or self.is_settling


class PartlyRenewedError(Exception):
    """Some leases were renewed or found lost, and of the others nothing is known: their partitions did not answer."""

    def __init__(self, owned: Sequence[bool | None], cause: Exception) -> None:
        super().__init__(cause)
        self.owned = owned  # None if it is not known
        self.cause = cause


class Heartbeat:
    """Renews leases until it is stopped, all are lost or settled, or the handler has had its time.

    A renewal that does not get through is tried again at the next interval, as long as a lease lasts.
    """

    def __init__(
        self, lease: Lease, interval: float, renew: Renew, options: QueueOptions, emitter: EventEmitter
    ) -> None:
        self._lease = lease
        self._interval = interval
        self._renew = renew
        self._options = options
        self._emitter = emitter
        self._late: set[Claim] = set()  # their handlers have had their time
        self._unanswered: set[Claim] = set()  # their partitions did not answer the last renewal

    async def beat(self, pause: Pause) -> None:
        """Renew until there is nothing left to renew, in a thread or a task of its own."""
        interval, now = self._interval, self._lease.port.now
        due = now() + interval
        # After a Ctrl-C between its start and the moment when its consumer knows it, only the lease can stop it.
        while not await pause(min(due - now(), _SOON_SECONDS) if self._unanswered else interval):
            if self._lease.over:
                return
            is_due = not self._unanswered or now() >= due
            if is_due:
                due = now() + interval
                await self._give_up_late()
            if not await self._renew_once(pause, None if is_due else self._unanswered):
                return

    async def _give_up_late(self) -> None:
        """Stop renewing for handlers that exceed `max_processing_seconds`: another consumer may have their messages."""
        limit, claims = self._options.max_processing_seconds, self._lease.claims
        if limit is None:
            return
        self._late.intersection_update(claims)
        late = [claim for claim in claims if claim not in self._late and self._lease.worked_on(claim) >= limit]
        for claim in late:
            text = "has been handled for longer than max_processing_seconds=%g; its lease is no longer renewed"
            self._emitter.log(WARNING, claim, text, limit)
        self._late.update(late)
        await self._emit(late, EventOperation.LEASE_RENEW, EventOutcome.SKIPPED)

    async def _renew_once(self, pause: Pause, only: set[Claim] | None) -> bool:
        """Renew once, all of them or ``only`` these. Returns whether there is anything left to do."""
        lease, sent_at = self._lease, self._lease.port.now()
        claims = [claim for claim in lease.claims if claim not in self._late and (only is None or claim in only)]
        self._unanswered = set()
        if not claims and only is not None:
            return True
        if not claims:
            return lease.may_hold_more
        unknown: list[Claim] = []
        try:
            budget = max(0.0, min(lease.left(claim) for claim in claims))
            owned = await self._renew(claims, budget, lambda: lease.over)
        except PartlyRenewedError as partly:
            unknown = [claim for claim, is_ours in zip(claims, partly.owned, strict=True) if is_ours is None]
            lasts = lease.is_settling or any(lease.left(claim) > 0 for claim in unknown)
            goes_on = self._may_get_through(partly.cause) and lasts
            if goes_on:
                self._unanswered = set(unknown)
            if (only is None or not goes_on) and not await pause(0):
                await self._not_renewed(unknown, partly.cause, goes_on=goes_on)
            claims = [claim for claim in claims if claim not in unknown]
            owned = [is_ours for is_ours in partly.owned if is_ours is not None]
        except Exception as error:
            # What is being settled is held again if that fails.
            lasts = lease.is_settling or any(lease.left(claim) > 0 for claim in claims)
            goes_on = self._may_get_through(error) and lasts
            if not await pause(0):
                await self._not_renewed(claims, error, goes_on=goes_on)
            return goes_on or lease.stays_open
        renewed = [claim for claim, is_ours in zip(claims, owned, strict=True) if is_ours]
        lease.renewed(renewed, sent_at)
        await self._emit(renewed, EventOperation.LEASE_RENEW)
        if len(renewed) < len(claims) and not await pause(0):
            # A message that was settled meanwhile has no lease to lose.
            still_held = set(lease.claims).difference(renewed)
            await self._lose([claim for claim in claims if claim in still_held])
        return bool(renewed) or bool(self._unanswered) or only is not None or lease.may_hold_more

    def _may_get_through(self, error: Exception) -> bool:
        """Whether another renewal could succeed where this one did not."""
        return isinstance(error, RetryBudgetExhaustedError) or self._lease.port.is_transient(error)

    async def _not_renewed(self, claims: Sequence[Claim], error: Exception, *, goes_on: bool) -> None:
        others = f", like those of {len(claims) - 1} others" if len(claims) > 1 else ""
        then = "the next heartbeat tries again" if goes_on else "its heartbeat ends"
        text = "has a lease that could not be renewed%s (%s); %s"
        self._emitter.log(WARNING, claims[0], text, others, named(error), then)
        await self._emit(claims, EventOperation.LEASE_RENEW, EventOutcome.FAILURE, error)
        if not goes_on:
            await self._call_on_failure()

    async def _lose(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._lease.refuse(claim)
            self._emitter.log(WARNING, claim, "has lost its lease to another consumer while its handler was running")
        if claims:
            await self._emit(claims, EventOperation.STALE_LEASE_RENEW, EventOutcome.SKIPPED)
            await self._call_on_failure()

    async def _emit(
        self,
        claims: Sequence[Claim],
        operation: EventOperation,
        outcome: EventOutcome = EventOutcome.SUCCESS,
        error: Exception | None = None,
    ) -> None:
        for claim in claims if self._emitter.wanted else ():
            await self._emitter.emit(operation, outcome, claim=claim, error=error)

    async def _call_on_failure(self) -> None:
        if self._options.on_heartbeat_failure is not None:
            await self._emitter.call(self._options.on_heartbeat_failure, what="on_heartbeat_failure")
