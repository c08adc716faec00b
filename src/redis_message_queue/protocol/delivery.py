"""One message in the hands of one handler: how it arrives, and what becomes of it when the handler is done."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from redis_message_queue.errors import CleanupFailedError, CorruptMessageError, RetryBudgetExhaustedError
from redis_message_queue.events import EventOperation, EventOutcome
from redis_message_queue.messages import ReceivedMessage, moment
from redis_message_queue.protocol.claim import Attempt, Claim, Found
from redis_message_queue.protocol.lease import Heartbeat, Lease
from redis_message_queue.protocol.port import Sidecar
from redis_message_queue.protocol.settle import Keep, Settled
from redis_message_queue.protocol.tell import log

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

# What the handlers of this thread or task hold, innermost last.
_held: ContextVar[tuple[Delivery, ...]] = ContextVar("redis_message_queue_held", default=())


def current_message(queue: QueueProtocol) -> ReceivedMessage | None:
    """The message that the running handler of this queue holds."""
    for delivery in reversed(_held.get()):
        if delivery.queue is queue:
            return delivery.message
    return None


class Delivery:
    """Entering claims a message, leaving settles it; these are two calls, so that the handler runs in the shell."""

    def __init__(self, queue: QueueProtocol) -> None:
        self.queue = queue
        self.message: ReceivedMessage | None = None
        self.claim: Claim | None = None
        self.hands_off = False  # leave the message as it is, whatever the handler did
        self.attempt: Attempt | None = None  # in doubt until the shell says that the handler has the message
        self._sidecar: Sidecar | None = None
        self._cancelled: BaseException | None = None

    # -- entering

    async def enter(self) -> None:
        """Claim a message and start its heartbeat; without one `message` stays None."""
        claim = await self._claim_readable()
        if claim is None:
            return
        assert self.attempt is not None
        options, store = self.queue.options, self.queue.store
        lease = Lease(claim, store.options.message_visibility_timeout_seconds, self.queue.port, claim.claimed_at)
        self.claim = claim
        self.message = ReceivedMessage(
            payload=claim.payload.decode() if self.queue.port.decodes else claim.payload,
            id=claim.message_id,
            tenant=claim.tenant,
            delivery_count=claim.delivery_count,
            published_at=moment(claim.published_at),
            _is_lease_lost=lambda: lease.lost,
        )
        if options.heartbeat_interval_seconds is not None:
            heartbeat = Heartbeat(lease, store.settler.renew, options, self.queue.teller)
            self._sidecar = self.queue.port.spawn(heartbeat.beat)
        _held.set((*_held.get(), self))

    def abandon(self) -> None:
        """Entering was broken off: what was claimed is found again by the next claim or a drain."""
        self._release()
        if self._sidecar is not None:
            self._sidecar.abandon()
        self._forget()

    async def _claim_readable(self) -> Claim | None:
        """The next message that can be read; what cannot goes to the dead letters with that reason."""
        while True:
            claim = await self._claim()
            if claim is None or not self.queue.port.decodes:
                return claim
            try:
                claim.payload.decode()
                return claim
            except UnicodeDecodeError as error:
                await self._bury(claim, error)

    async def _claim(self) -> Claim | None:
        queue, claimer = self.queue, self.queue.store.claimer
        started = queue.port.now()
        while not queue.is_stopped():
            recovered = await claimer.recover()
            if recovered is None:
                break
            self.attempt, found = recovered
            await self._tell_found(found, started)
            if found.claims:
                return found.claims[0]
            self._release()
        self.attempt = claimer.attempt()
        try:
            found = await claimer.claim(
                self.attempt,
                queue.store.options.message_wait_interval_seconds,
                queue.is_stopped,
                self._tell_retry,
            )
        except Exception as error:
            if isinstance(error, RetryBudgetExhaustedError):
                await queue.teller.tell(EventOperation.RETRY_EXHAUSTED, EventOutcome.FAILURE, error=error)
            await queue.teller.tell(EventOperation.CLAIM, EventOutcome.FAILURE, error=error)
            raise
        await self._tell_found(found, started)
        if found.claims:
            return found.claims[0]
        self._release()
        return None

    async def _bury(self, claim: Claim, reason: UnicodeDecodeError) -> None:
        assert self.attempt is not None
        settled = await self.queue.store.settler.settle(self.attempt.slot, claim, self.queue.dead_letters)
        self.attempt.unsure = False
        self._release()
        error = CorruptMessageError(
            f"the payload is not UTF-8 (byte {reason.start}), and the client decodes responses",
            queue=self.queue.options.name,
            message_id=claim.message_id,
            operation="claim",
        )
        log.warning("message %s cannot be decoded and went to the dead letters", claim.message_id)
        if settled.held:
            await self.queue.teller.tell(EventOperation.DLQ, claim=claim, error=error)

    async def _tell_found(self, found: Found, started: float) -> None:
        tell = self.queue.teller.tell
        for dead in found.dead:
            log.warning("message %s was delivered %d times and went to the dead letters", *_named(dead))
            await tell(EventOperation.DLQ, message_id=dead.message_id, delivery_count=dead.delivery_count)
        if found.trim_error is not None:
            await self._tell_trim(found.trim_error)
        if not self.queue.teller.wanted:
            return
        waited = self.queue.port.now() - started
        for claim in found.claims:
            if claim.reclaimed or found.recovered:
                await tell(EventOperation.CLAIM_RECLAIM, claim=claim)
            await tell(EventOperation.CLAIM, claim=claim, duration_seconds=waited)
        if not found.claims and not found.recovered:
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
        self._forget()
        try:
            if self._sidecar is not None:
                await self._undisturbed(self._sidecar.stop())
            if claim is None or self.hands_off:
                return
            if error is None:
                await self._succeed(claim)
            elif isinstance(error, Exception):
                await self._fail(claim, error)
        finally:
            self._release()

    async def _succeed(self, claim: Claim) -> None:
        tell, keep = self.queue.teller.tell, self.queue.completed
        settled, trouble = await self._settle(claim, keep)
        if trouble is not None:
            await self._undisturbed(
                tell(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim=claim, error=trouble)
            )
            raise CleanupFailedError(
                f"the handler succeeded and its message could not be acknowledged ({type(trouble).__name__}); "
                "it will be delivered again when its lease runs out, if the queue has leases",
                queue=self.queue.options.name,
                message_id=claim.message_id,
                operation="ack",
            ) from trouble
        if settled.held:
            await self._undisturbed(tell(EventOperation.ACK, claim=claim, duration_seconds=self._held_for(claim)))
            if keep is not None:
                await self._undisturbed(tell(EventOperation.COMPLETED, claim=claim))
        else:
            log.warning("message %s was handled after its lease had been lost", claim.message_id)
            await self._undisturbed(tell(EventOperation.STALE_LEASE_ACK, EventOutcome.SKIPPED, claim=claim))
        if settled.trim_error is not None:
            await self._undisturbed(self._tell_trim(settled.trim_error, claim))
        if self._cancelled is not None:
            raise self._cancelled

    async def _fail(self, claim: Claim, error: Exception) -> None:
        """The handler's error is what the caller sees, whatever else goes wrong here."""
        tell = self.queue.teller.tell
        await self._undisturbed(tell(EventOperation.FAILED, EventOutcome.FAILURE, claim=claim, error=error))
        settled, trouble = await self._settle(claim, self.queue.failed)
        if trouble is not None:
            log.error("message %s could not be cleaned up: %s", claim.message_id, type(trouble).__name__)
            await self._undisturbed(
                tell(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim=claim, error=trouble)
            )
        elif settled.held:
            await self._undisturbed(tell(EventOperation.NACK, claim=claim, duration_seconds=self._held_for(claim)))
        else:
            log.warning("message %s failed after its lease had been lost", claim.message_id)
            await self._undisturbed(tell(EventOperation.STALE_LEASE_NACK, EventOutcome.SKIPPED, claim=claim))
        if settled.trim_error is not None:
            await self._undisturbed(self._tell_trim(settled.trim_error, claim))
        if self._cancelled is not None:
            _append_to_context(error, self._cancelled)

    async def _settle(self, claim: Claim, keep: Keep | None) -> tuple[Settled, BaseException | None]:
        assert self.attempt is not None
        work = self.queue.store.settler.settle(self.attempt.slot, claim, keep)
        answer = await self.queue.port.shielded(work)
        self._cancelled = self._cancelled or answer.cancelled
        return answer.value or Settled(False), answer.error

    async def _undisturbed(self, step: Coroutine[Any, Any, None]) -> None:
        """A cancellation that lands in a step cuts that step short, not the cleanup around it."""
        try:
            await step
        except BaseException as error:
            if not self.queue.port.is_cancellation(error):
                raise
            self._cancelled = self._cancelled or error

    def _held_for(self, claim: Claim) -> float:
        return self.queue.port.now() - claim.claimed_at

    def _release(self) -> None:
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self.queue.store.claimer.release(attempt)

    def _forget(self) -> None:
        _held.set(tuple(delivery for delivery in _held.get() if delivery is not self))


def _named(dead: Any) -> tuple[str, int]:
    return dead.message_id or "(foreign)", dead.delivery_count


def _append_to_context(error: BaseException, cancelled: BaseException) -> None:
    """Make a suppressed cancellation discoverable at the end of the error's chain."""
    last, seen = error, {id(error), id(cancelled)}
    while last.__context__ is not None and id(last.__context__) not in seen:
        last = last.__context__
        seen.add(id(last))
    if last is not cancelled:
        cancelled.__context__ = None
        last.__context__ = cancelled
