"""How messages come into the hands of a handler: found again or claimed, read, and told of."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from redis_message_queue.errors import (
    CleanupFailedError,
    ConfigurationError,
    CorruptMessageError,
    GatewayContractError,
    RedisMessageQueueError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.events import EventOperation, EventOutcome
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.protocol.calls import Attempt
from redis_message_queue.protocol.claim import Claim, Found, Rider
from redis_message_queue.protocol.lease import Heartbeat, Lease
from redis_message_queue.protocol.port import Sidecar, uncarried
from redis_message_queue.protocol.settle import Note
from redis_message_queue.protocol.tell import log

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol


held_without_lease: WeakValueDictionary[bytes, Intake] = WeakValueDictionary()
"""Leases that never end by themselves, and whose handler works on them: a purge of orphans must leave them alone."""


class Intake:
    """One consumer's way to its messages, and its hold on them. What becomes of them is for subclasses to say."""

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_has_leases",
        "_lease",
        "_process",
        "_sidecar",
        "attempt",
        "queue",
        "settled",
    )
    is_patient = False  # whether a claim may use the whole retry budget, because nobody waits for its end

    def __init__(self, queue: QueueProtocol) -> None:
        self.queue = queue
        self.attempt: Attempt | None = None  # unsure until the shell says that the handler has the messages
        self._process = queue.port.process()
        self._has_leases = queue.store.options.message_visibility_timeout_seconds is not None
        self._lease: Lease | None = None
        self._sidecar: Sidecar | None = None
        self._cancelled: BaseException | None = None
        self.settled: set[Claim] = set()  # what the handler has completed itself

    @property
    def is_inherited(self) -> bool:
        """Whether a handler has forked, and this is the child: its parent settles, and has the heartbeat."""
        return self._process != self.queue.port.process()

    def refuse_inherited(self, message_id: str, operation: str) -> None:
        """Raise in a forked child: whoever claimed a message works on it, and settles it."""
        if self.is_inherited:
            raise ConfigurationError(
                "this message was claimed in another process, which this one was forked from and which settles it; "
                "leave it to that process, and work with messages that are claimed here",
                queue=self.queue.options.name,
                message_id=message_id,
                operation=operation,
            )

    def is_stopped(self) -> bool:
        """Whether to take no fresh work."""
        return self.queue.is_stopped()

    async def take(
        self, count: int, wait_seconds: float, rider: Rider | None = None
    ) -> list[tuple[Claim, str | bytes]]:
        """Claim up to ``count`` messages that can be read; what cannot goes to the dead letters with that reason."""
        try:
            while True:
                claims = await self._claim(count, wait_seconds, rider)
                if not claims:
                    return []
                readable = await self._readable(claims)
                if readable:
                    return readable
                # Until they had left, their claim stayed recoverable: settling has a slot and a number of its own.
                assert self.attempt is not None
                self.attempt.unsure = False
                self._release(self.attempt)
        except Exception as error:
            await self._tell_failed_claim(error)
            raise

    async def _readable(self, claims: list[Claim]) -> list[tuple[Claim, str | bytes]]:
        readable = []
        for claim in claims:
            try:
                readable.append((claim, claim.read(decode=self.queue.store.decodes)))
            except UnicodeDecodeError as error:
                await self._bury(claim, error)
        return readable

    async def _claim(self, count: int, wait_seconds: float, rider: Rider | None) -> list[Claim]:
        queue, claimer = self.queue, self.queue.store.claimer
        if queue.gate.is_shut:
            return []
        # A claim that is on its way may take a message: a drain waits until its outcome is known or on the list.
        entry = queue.gate.enter()
        try:
            started = queue.port.now()
            found = await self._ask_unsure_claims(count, wait_seconds, started) if claimer.unsure else None
            if found is None:
                self.attempt = claimer.attempt()
                self.attempt.resting = partial(queue.gate.rest, entry)
                self.attempt.patient = self.is_patient
                wait_seconds = max(0.0, wait_seconds - (queue.port.now() - started)) if wait_seconds else 0.0
                found = await claimer.claim(
                    self.attempt, wait_seconds, self.is_stopped, self._tell_retry, count, rider, self._tell_dead
                )
            if found.dead or found.trim_error is not None or queue.teller.wanted:
                await self._tell_found(found, started)
            if not found.claims:
                assert self.attempt is not None
                self._release(self.attempt)
            return found.claims
        except BaseException:
            if self.attempt is not None:  # on the list of those in doubt before a drain can look
                self._release(self.attempt)
            raise
        finally:
            queue.gate.leave(entry)

    async def _ask_unsure_claims(self, count: int, wait_seconds: float, started: float) -> Found | None:
        """What a claim took whose answer nobody saw; for a stopped consumer too, because it is no fresh work."""
        claimer, settler = self.queue.store.claimer, self.queue.store.settler
        limit = None if self.is_patient else claimer.limit(started + wait_seconds)
        while claimer.unsure:
            recovered = await claimer.recover(self, self.is_stopped, self._tell_retry, limit=limit)
            if recovered is None:
                return None
            self.attempt, found = recovered
            found.claims, surplus = found.claims[:count], found.claims[count:]
            if surplus:
                await settler.give_back(surplus, forgiven=True)
            if found.claims or found.in_doubt:
                return found
            await self._tell_found(found, started)
            self._release(self.attempt)
        return None

    async def _tell_failed_claim(self, error: Exception) -> None:
        queue = self.queue
        if isinstance(error, RedisMessageQueueError):
            error.locate(queue.options.name, "claim")
        if isinstance(error, RetryBudgetExhaustedError):
            await queue.teller.tell(EventOperation.RETRY_EXHAUSTED, EventOutcome.FAILURE, error=error)
        await queue.teller.tell(EventOperation.CLAIM, EventOutcome.FAILURE, error=uncarried(error))

    def _release(self, attempt: Attempt) -> None:
        self.attempt = None
        self.queue.store.claimer.release(attempt)

    def hold(self, claims: list[Claim]) -> Lease:
        """What is known of the hold on these messages, made when somebody asks."""
        if self._lease is None:
            length = self.queue.store.options.message_visibility_timeout_seconds
            self._lease = Lease(length, self.queue.port)
            self._lease.add(claims)
        return self._lease

    def begin_work_on(self, claims: Sequence[Claim]) -> None:
        """A handler gets these."""
        if not self._has_leases:
            held_without_lease.update((claim.token, self) for claim in claims)

    def end_work_on(self, claims: Iterable[Claim]) -> None:
        """No handler has these any more, however that came about."""
        if not self._has_leases:
            for claim in claims:
                held_without_lease.pop(claim.token, None)

    def start_heartbeat(self, lease: Lease) -> None:
        """Renew what is held under this lease, if the queue wants that."""
        queue = self.queue
        if queue.options.heartbeat_interval_seconds is not None:
            heartbeat = Heartbeat(lease, queue.store.settler.renew, queue.options, queue.teller)
            self._sidecar = queue.port.spawn(heartbeat.beat)

    async def stop_heartbeat(self) -> None:
        if self._sidecar is not None:
            await self._undisturbed(self._sidecar.stop())

    def abandon(self) -> None:
        """Entering was broken off: what was claimed is found again by the next claim or a drain."""
        claimer = self.queue.store.claimer
        if self.attempt is not None:
            claimer.release(self.attempt)
        claimer.unsure.leave_to_others(self)
        if self._sidecar is not None:
            self._sidecar.abandon()
        self.end_lease()

    def end_lease(self) -> None:
        """Whatever renews these messages need not go on."""
        if self._lease is not None:
            self._lease.over = True

    def received(self, claim: Claim, payload: str | bytes) -> ReceivedMessage:
        """The message with what is known about it."""
        if claim.delivery_count is None:
            raise GatewayContractError(
                "a custom gateway hands over payloads alone: there is no id, delivery count or time to tell",
                queue=self.queue.options.name,
                operation="current_message",
            )
        return self.queue.message_class(payload, claim, self)

    @property
    def queue_name(self) -> str:
        """Where these messages come from."""
        return self.queue.options.name

    def is_lost(self, claim: Claim) -> bool:
        """Whether another consumer may have it."""
        return self.hold([claim]).is_lost(claim)

    async def complete(self, claim: Claim, publish: Sequence[Any]) -> None:
        """Acknowledge a message from inside its handler, with what it has led to."""
        raise NotImplementedError

    async def _bury(self, claim: Claim, reason: UnicodeDecodeError) -> None:
        error = CorruptMessageError(
            f"the payload is not UTF-8 (byte {reason.start}), and the client decodes responses",
            queue=self.queue.options.name,
            message_id=claim.message_id,
            operation="claim",
        )
        note = Note("undecodable", error, event="dead")
        settled = await self.queue.store.settler.settle([claim], self.queue.dead_letters, note)
        log.warning("message %s cannot be decoded and went to the dead letters", claim.message_id)
        if settled.held[0]:
            await self.queue.teller.tell(EventOperation.DLQ, claim=claim, error=error)

    # -- telling

    async def _tell_dead(self, found: Found) -> None:
        log_dead(found)
        for dead in found.dead:
            await self.queue.teller.tell(
                EventOperation.DLQ, message_id=dead.message_id, delivery_count=dead.delivery_count
            )
        if found.trim_error is not None:
            await self.tell_trim(found.trim_error)

    async def _tell_found(self, found: Found, started: float) -> None:
        tell = self.queue.teller.tell
        if found.dead or found.trim_error is not None:  # a claim that was found again; others say it at once
            await self._tell_dead(found)
        if not self.queue.teller.wanted:
            return
        waited = self.queue.port.now() - started
        for claim in found.claims:
            if claim.reclaimed or found.recovered:
                await tell(EventOperation.CLAIM_RECLAIM, claim=claim)
            await tell(EventOperation.CLAIM, claim=claim, duration_seconds=waited)
        if not (found.claims or found.recovered or found.in_doubt):
            await tell(EventOperation.CLAIM_EMPTY, EventOutcome.SKIPPED, duration_seconds=waited)

    async def _tell_retry(self, error: Exception, tries: int) -> None:
        await self.queue.teller.tell(EventOperation.RETRY_ATTEMPT, EventOutcome.FAILURE, error=error, attempt=tries)

    async def tell_trim(self, complaint: str, claim: Claim | None = None) -> None:
        log.warning("a list could not be trimmed: %s", complaint)
        error = CleanupFailedError(f"trimming failed: {complaint}", queue=self.queue.options.name, operation="trim")
        await self.queue.teller.tell(EventOperation.TRIM_FAILED, EventOutcome.FAILURE, claim=claim, error=error)

    async def tell_outcome(
        self, operation: EventOperation, outcome: EventOutcome, claim: Claim, error: BaseException | None = None
    ) -> None:
        teller = self.queue.teller
        if teller.wanted:
            held_for = self.queue.port.now() - claim.claimed_at
            await self._undisturbed(
                teller.tell(operation, outcome, claim=claim, error=error, duration_seconds=held_for)
            )

    async def _undisturbed(self, step: Coroutine[Any, Any, None]) -> None:
        """A cancellation that lands in a step cuts that step short, not the cleanup around it."""
        try:
            await step
        except BaseException as error:
            if not self.queue.port.is_cancellation(error):
                raise
            self._cancelled = self._cancelled or error


def log_dead(found: Found) -> None:
    """A line for each message that a claim put into the dead letters."""
    for dead in found.dead:
        log.warning("message %s went to the dead letters (%s)", dead.message_id or "(foreign)", dead.reason)
