"""One message in the hands of one handler: how it arrives, and what becomes of it when the handler is done."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_message_queue.errors import (
    CleanupFailedError,
    CorruptMessageError,
    GatewayContractError,
    RedisMessageQueueError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.events import EventOperation, EventOutcome
from redis_message_queue.messages import ReceivedMessage, moment
from redis_message_queue.protocol.calls import Attempt
from redis_message_queue.protocol.claim import Claim, Found
from redis_message_queue.protocol.lease import Heartbeat, Lease
from redis_message_queue.protocol.port import Sidecar, uncarried
from redis_message_queue.protocol.settle import Keep, Settled
from redis_message_queue.protocol.tell import log

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

# The innermost delivery of this thread or task; each knows the one around it.
_innermost: ContextVar[Delivery | None] = ContextVar("redis_message_queue_delivery", default=None)

_LOST = Settled(held=False)


def current_message(queue: QueueProtocol) -> ReceivedMessage | None:
    """The message that the running handler of this queue holds."""
    delivery = _innermost.get()
    while delivery is not None:
        if delivery.queue is queue and delivery.is_open:
            return delivery.received
        delivery = delivery.around
    return None


class Delivery:
    """Entering claims a message, leaving settles it: two calls, so that the handler runs in the shell."""

    __slots__ = (
        "_cancelled",
        "_lease",
        "_process",
        "_received",
        "_sidecar",
        "around",
        "attempt",
        "claim",
        "hands_off",
        "is_open",
        "payload",
        "queue",
    )

    def __init__(self, queue: QueueProtocol) -> None:
        self.queue = queue
        self.claim: Claim | None = None
        self.payload: str | bytes | None = None
        self.attempt: Attempt | None = None  # unsure until the shell says that the handler has the message
        self.hands_off = False  # leave the message as it is, whatever the handler did
        self.is_open = False
        self._process = queue.port.process()
        self.around: Delivery | None = None
        self._lease: Lease | None = None
        self._received: ReceivedMessage | None = None
        self._sidecar: Sidecar | None = None
        self._cancelled: BaseException | None = None

    @property
    def received(self) -> ReceivedMessage:
        """The message with what is known about it, made when somebody asks."""
        if self._received is None:
            assert self.claim is not None and self.payload is not None
            if self.claim.delivery_count is None:
                raise GatewayContractError(
                    "a custom gateway hands over payloads alone: there is no id, delivery count or time to tell",
                    queue=self.queue.options.name,
                    operation="current_message",
                )
            lease = self._held_lease(self.claim)
            self._received = ReceivedMessage(
                payload=self.payload,
                id=self.claim.message_id,
                tenant=self.claim.envelope.tenant,
                delivery_count=self.claim.delivery_count,
                published_at=moment(self.claim.envelope.published_at),
                _is_lease_lost=lambda: lease.lost,
            )
        return self._received

    def _held_lease(self, claim: Claim) -> Lease:
        if self._lease is None:
            length = self.queue.store.options.message_visibility_timeout_seconds
            self._lease = Lease(claim, length, self.queue.port, claim.claimed_at)
        return self._lease

    # -- entering

    async def enter(self) -> None:
        """Claim a message and start its heartbeat; without one `payload` stays None."""
        claim = await self._claim_readable()
        if claim is None:
            return
        assert self.attempt is not None
        queue = self.queue
        self.claim = claim
        if queue.options.heartbeat_interval_seconds is not None:
            heartbeat = Heartbeat(self._held_lease(claim), queue.store.settler.renew, queue.options, queue.teller)
            self._sidecar = queue.port.spawn(heartbeat.beat)
        self.is_open = True
        self.around = _innermost.get()
        _innermost.set(self)
        queue.store.claimer.hand_over(self.attempt)

    def abandon(self) -> None:
        """Entering was broken off: what was claimed is found again by the next claim or a drain."""
        claimer = self.queue.store.claimer
        if self.attempt is not None:
            claimer.release(self.attempt)
        claimer.unsure.leave_to_others(self)
        if self._sidecar is not None:
            self._sidecar.abandon()
        self._close()

    async def _claim_readable(self) -> Claim | None:
        """The next message that can be read; what cannot goes to the dead letters with that reason."""
        try:
            while True:
                claim = await self._claim()
                if claim is None:
                    return None
                try:
                    self.payload = claim.read(decode=self.queue.store.decodes)
                    return claim
                except UnicodeDecodeError as error:
                    await self._bury(claim, error)
        except Exception as error:
            await self._tell_failed_claim(error)
            raise

    async def _claim(self) -> Claim | None:
        queue, claimer = self.queue, self.queue.store.claimer
        if queue.gate.is_shut:
            return None
        # A claim that is on its way may take a message: a drain waits until its outcome is known or on the list.
        entry = queue.gate.enter()
        try:
            started = queue.port.now() if queue.teller.wanted else 0.0
            found = await self._ask_unsure_claims(started)
            if found is None:
                self.attempt = claimer.attempt()
                self.attempt.resting = partial(queue.gate.rest, entry)
                wait = queue.store.options.message_wait_interval_seconds
                found = await claimer.claim(self.attempt, wait, queue.is_stopped, self._tell_retry)
            if found.dead or found.trim_error is not None or queue.teller.wanted:
                await self._tell_found(found, started)
            if found.claim is None:
                assert self.attempt is not None
                self._release(self.attempt)
            return found.claim
        except BaseException:
            if self.attempt is not None:  # on the list of those in doubt before a drain can look
                self._release(self.attempt)
            raise
        finally:
            queue.gate.leave(entry)

    async def _ask_unsure_claims(self, started: float) -> Found | None:
        """What a claim took whose answer nobody saw; for a stopped consumer too, because it is no fresh work."""
        claimer = self.queue.store.claimer
        while claimer.unsure:
            recovered = await claimer.recover(self, self.queue.is_stopped, self._tell_retry)
            if recovered is None:
                return None
            self.attempt, found = recovered
            if found.claim is not None or found.in_doubt:
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

    async def _bury(self, claim: Claim, reason: UnicodeDecodeError) -> None:
        attempt, store = self.attempt, self.queue.store
        assert attempt is not None
        # Until the message has left, its claim stays recoverable: settling has a slot and a number of its own.
        settled = await store.settler.settle(claim, self.queue.dead_letters)
        attempt.unsure = False
        self._release(attempt)
        log.warning("message %s cannot be decoded and went to the dead letters", claim.message_id)
        error = CorruptMessageError(
            f"the payload is not UTF-8 (byte {reason.start}), and the client decodes responses",
            queue=self.queue.options.name,
            message_id=claim.message_id,
            operation="claim",
        )
        if settled.held:
            await self.queue.teller.tell(EventOperation.DLQ, claim=claim, error=error)

    async def _tell_found(self, found: Found, started: float) -> None:
        tell = self.queue.teller.tell
        for dead in found.dead:
            name = dead.message_id or "(foreign)"
            log.warning("message %s went to the dead letters after %d deliveries", name, dead.delivery_count)
            await tell(EventOperation.DLQ, message_id=dead.message_id, delivery_count=dead.delivery_count)
        if found.trim_error is not None:
            await self._tell_trim(found.trim_error)
        if not self.queue.teller.wanted:
            return
        waited = self.queue.port.now() - started
        if found.claim is not None:
            if found.claim.reclaimed or found.recovered:
                await tell(EventOperation.CLAIM_RECLAIM, claim=found.claim)
            await tell(EventOperation.CLAIM, claim=found.claim, duration_seconds=waited)
        elif not found.recovered:
            await tell(EventOperation.CLAIM_EMPTY, EventOutcome.SKIPPED, duration_seconds=waited)

    async def _tell_retry(self, error: Exception, tries: int) -> None:
        await self.queue.teller.tell(EventOperation.RETRY_ATTEMPT, EventOutcome.FAILURE, error=error, attempt=tries)

    async def _tell_trim(self, complaint: str, claim: Claim | None = None) -> None:
        log.warning("a list could not be trimmed: %s", complaint)
        error = CleanupFailedError(f"trimming failed: {complaint}", queue=self.queue.options.name, operation="trim")
        await self.queue.teller.tell(EventOperation.TRIM_FAILED, EventOutcome.FAILURE, claim=claim, error=error)

    # -- leaving

    async def leave(self, error: BaseException | None) -> None:
        """Settle the message by how the handler ended; an exit that is not an `Exception` touches nothing."""
        claim = self.claim
        if claim is None:
            return
        self._close()
        if self._process != self.queue.port.process():
            return  # a handler has forked: the message is its parent's to settle, and so is the heartbeat
        if self._sidecar is not None:
            await self._undisturbed(self._sidecar.stop())
        if self.hands_off:
            return
        if error is None:
            await self._succeed(claim)
        elif isinstance(error, Exception):
            await self._fail(claim, error)

    async def _succeed(self, claim: Claim) -> None:
        keep = self.queue.completed
        settled, trouble = await self._settle(claim, keep)
        if trouble is not None:
            await self._tell_outcome(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim, trouble)
            failure = CleanupFailedError(
                f"the handler succeeded and its message could not be acknowledged ({type(trouble).__name__}); "
                "it will be delivered again when its lease runs out, if the queue has leases",
                queue=self.queue.options.name,
                message_id=claim.message_id,
                operation="ack",
            )
            if self._cancelled is not None:
                _append_to_context(failure, self._cancelled)
            raise failure from trouble
        if settled.held:
            await self._tell_outcome(EventOperation.ACK, EventOutcome.SUCCESS, claim)
            if keep is not None:
                await self._tell_outcome(EventOperation.COMPLETED, EventOutcome.SUCCESS, claim)
        else:
            log.warning("message %s was handled after its lease had been lost", claim.message_id)
            await self._tell_outcome(EventOperation.STALE_LEASE_ACK, EventOutcome.SKIPPED, claim)
        if settled.trim_error is not None:
            await self._undisturbed(self._tell_trim(settled.trim_error, claim))
        if self._cancelled is not None:
            raise self._cancelled

    async def _fail(self, claim: Claim, error: Exception) -> None:
        """The handler's error is what the caller sees, whatever else goes wrong here."""
        await self._tell_outcome(EventOperation.FAILED, EventOutcome.FAILURE, claim, error)
        settled, trouble = await self._settle(claim, self.queue.failed)
        if trouble is not None:
            log.error("message %s could not be cleaned up: %s", claim.message_id, type(trouble).__name__)
            await self._tell_outcome(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim, trouble)
        elif settled.held:
            await self._tell_outcome(EventOperation.NACK, EventOutcome.SUCCESS, claim)
        else:
            log.warning("message %s failed after its lease had been lost", claim.message_id)
            await self._tell_outcome(EventOperation.STALE_LEASE_NACK, EventOutcome.SKIPPED, claim)
        if settled.trim_error is not None:
            await self._undisturbed(self._tell_trim(settled.trim_error, claim))
        if self._cancelled is not None:
            _append_to_context(error, self._cancelled)

    async def _settle(self, claim: Claim, keep: Keep | None) -> tuple[Settled, Exception | None]:
        cancellations: list[BaseException] = []
        settled, trouble = _LOST, None
        try:
            settled = await self.queue.store.settler.settle(claim, keep, cancellations)
        except Exception as error:
            trouble = uncarried(error)
            if isinstance(error, RedisMessageQueueError):
                error.locate(self.queue.options.name, "settle")
        if cancellations and self._cancelled is None:
            self._cancelled = cancellations[0]
        return settled, trouble

    async def _tell_outcome(
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

    def _close(self) -> None:
        """Whoever asks for the current message no longer gets this one, in whatever order deliveries end."""
        self.is_open = False
        if self._lease is not None:
            self._lease.over = True
        if _innermost.get() is self:
            _innermost.set(self.around)


def _append_to_context(error: BaseException, cancelled: BaseException) -> None:
    """Make a suppressed cancellation discoverable at the end of the error's chain."""
    last, seen = error, {id(error), id(cancelled)}
    while last.__context__ is not None and id(last.__context__) not in seen:
        last = last.__context__
        seen.add(id(last))
    if last is not cancelled:
        cancelled.__context__ = None
        last.__context__ = cancelled
