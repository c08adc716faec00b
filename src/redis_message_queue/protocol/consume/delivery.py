"""How a delivery ends: acknowledged, retried later, failed for good or requeued, with its events and log lines."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from enum import Enum, auto
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.calls import LoopCancellations
from redis_message_queue.protocol.consume.claim import DEAD_LETTERS_ARE_FULL, Claim, log_cut
from redis_message_queue.protocol.consume.handoff import HandOff
from redis_message_queue.protocol.consume.lease import Lease
from redis_message_queue.protocol.consume.settle import SETTLED, PiggybackedAck, Settled, SettleReason, TerminalList
from redis_message_queue.protocol.event_emitter import log, named
from redis_message_queue.protocol.loop.handler_times import HandlerTimes
from redis_message_queue.protocol.port import unwrap
from redis_message_queue.values.errors import CleanupFailedError, RedisMessageQueueError, RetryBudgetExhaustedError
from redis_message_queue.values.events import EventOperation, EventOutcome
from redis_message_queue.values.outcomes import DeadLetter, Discard, RetryLater
from redis_message_queue.values.plain_values import described, traceback_text

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

NOT_ACKNOWLEDGED = "it will be delivered again when its lease runs out, if the queue has leases"
_FAILED_LIST_IS_FULL = ("failed list", "max_failed_length")
_COMPLETE = "complete"
_NOTHING_SENT = "nothing was published, and you still have the message"
_OUTCOME_UNKNOWN = (
    "all of it has happened, or nothing: complete it again, which publishes nothing twice, or let this error leave the "
    "handler, and if nothing has happened the message is delivered again when its lease runs out"
)
_REMOVED = (
    "was removed because its handler raised %s. To keep such messages, set enable_failed_queue=True or a retry_policy, "
    "or handle them with run() or process_messages()"
)


class Ending(Enum):
    """How a delivery ended whose handler raised."""

    RETRIED = auto()  # it waits for its next attempt
    FAILED = auto()  # it has failed for good, and is in the failed list or gone
    DEAD_LETTERED = auto()  # it is in the dead letters: its handler or the retry policy gave it up
    DISCARDED = auto()  # its handler did not want it
    LOST = auto()  # it was no longer ours
    UNCONFIRMED = auto()  # Redis did not answer: its lease decides

    @property
    def was_ours(self) -> bool:
        """Whether this consumer has settled it."""
        return self not in (Ending.LOST, Ending.UNCONFIRMED)


class Delivery:
    """Settles the messages of one consumer. Cancellations are noted and do not stop it."""

    __slots__ = ("_in_loop", "_keeps_failures", "_queue", "cancellations", "retries", "times")

    def __init__(self, queue: QueueProtocol, *, keeps_failures: bool, in_loop: bool = False) -> None:
        self._queue = queue
        self._in_loop = in_loop
        # Whether a message that failed for good goes to the dead letters where there is no failed list. Without this
        # it is removed: its handler's exception reaches the caller, who can keep it.
        self._keeps_failures = keeps_failures
        self.cancellations: list[BaseException] = LoopCancellations(queue.gate.give_up_at) if in_loop else []
        self.times: HandlerTimes | None = None  # of a loop on a queue with a journal
        self.retries: dict[bytes, float] | None = None  # message id to when its next attempt is due, if wanted

    # -- success

    async def ack(self, claims: Sequence[Claim]) -> None:
        """Acknowledge messages. Raises if Redis did not confirm it."""
        queue, trouble = self._queue, None
        try:
            if queue.completed is None and len(claims) == 1 and (part := claims[0].part) is not None:
                settled = await part.scripts.ack_one(claims[0], self.cancellations)
            else:
                reason = None if queue.completed is None else self._completed(claims)
                settled = await queue.store.settler.settle(claims, queue.completed, reason, self.cancellations)
        except Exception as error:
            trouble = error
        if trouble is not None:
            raise await self.not_acknowledged(claims, trouble)
        if settled is not SETTLED or queue.emitter.wanted:
            await self.acknowledged(claims, settled)

    def attach(self, claims: Sequence[Claim]) -> list[PiggybackedAck]:
        """Acks that can be sent with a claim, or again if their answers did not come; one for each part."""
        queue = self._queue
        handled = self._handled(claims)
        reason = None if queue.completed is None and not handled else self._completed(claims, handled)
        return queue.store.settler.attach(claims, queue.completed, reason)

    def _handled(self, claims: Sequence[Claim]) -> Sequence[int]:
        """For a journal, when the handlers of these messages ran."""
        return () if self.times is None else self.times.take(claims)

    def _completed(self, claims: Sequence[Claim], handled: Sequence[int] = ()) -> SettleReason:
        """One reason for all of them; it has no claim time if they were claimed at different times."""
        claimed_at = claims[0].claimed_at
        together = all(claim.claimed_at == claimed_at for claim in claims)
        held = self._queue.port.now() - claimed_at if together else None
        return SettleReason("completed", None, held, handled=handled)

    async def acknowledged(self, claims: Sequence[Claim], settled: Settled) -> None:
        """Report what an ack did."""
        queue = self._queue
        if not queue.emitter.wanted and settled.trim_error is None and all(settled.owned):
            return
        for claim, owned in zip(claims, settled.owned, strict=True):
            if owned:
                await self.emit(EventOperation.ACK, EventOutcome.SUCCESS, claim)
                if queue.completed is not None:
                    await self.emit(EventOperation.COMPLETED, EventOutcome.SUCCESS, claim)
            else:
                self._warn(claim, "was handled after its lease had been lost")
                await self.emit(EventOperation.STALE_LEASE_ACK, EventOutcome.SKIPPED, claim)
        if settled.trim_error is not None:
            await self.undisturbed(self.emit_trim_failed(settled.trim_error, claims[0]))

    async def not_acknowledged(
        self, claims: Sequence[Claim], error: Exception, advice: str = NOT_ACKNOWLEDGED
    ) -> CleanupFailedError:
        """The error to raise for messages whose handler succeeded; its events are emitted."""
        cause = self._located(error)
        for claim in claims:
            await self.emit(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim, cause)
        failure = CleanupFailedError(
            f"the handler succeeded and its message could not be acknowledged ({named(cause)}); {advice}",
            queue=self._queue.options.name,
            message_id=claims[0].message_id,
            operation="ack",
        )
        if self.cancellations:
            append_to_context(failure, self.cancellations[0])
        failure.__cause__ = cause
        return failure

    async def complete(self, claim: Claim, publish: Sequence[Any], lease: Lease, completed: set[Claim]) -> None:
        """Acknowledge a message and publish what it has led to in one step."""
        hand_off, started = HandOff(self._queue, claim), self._queue.port.now()
        try:
            targets = await hand_off.targets(publish)
        except Exception as error:
            if not (self._queue.port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError)):
                raise
            raise await self._not_completed(claim, error, _NOTHING_SENT) from error
        cancellations: list[BaseException] = []
        try:
            with lease.settling(claim):
                published, trim_error = await hand_off.complete(claim, targets, cancellations, self._handled([claim]))
                completed.add(claim)
        except Exception as error:
            # Our own errors say what has happened, all but this one.
            if isinstance(error, RedisMessageQueueError) and not isinstance(error, RetryBudgetExhaustedError):
                error.locate(self._queue.options.name, "complete")
                raise
            raise await self._not_completed(claim, error, _OUTCOME_UNKNOWN) from error
        finally:
            self.cancellations += cancellations
        await self.acknowledged([claim], Settled([True], trim_error))
        if targets:
            await self.emit(EventOperation.HANDED_OFF, EventOutcome.SUCCESS, claim)
        for target, result in zip(targets, published, strict=True):
            if target.queue.emitter.wanted:
                await target.queue.publisher.emit_published(target.ids, result, started)
        if cancellations:
            raise cancellations[0]

    async def _not_completed(self, claim: Claim, error: Exception, outcome: str) -> CleanupFailedError:
        """The error to raise in a handler when Redis did not confirm what it has completed; its event is emitted."""
        cause = self._located(error)
        await self.emit(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim, cause)
        return CleanupFailedError(
            f"Redis did not confirm that the message is completed ({named(cause)}); {outcome}",
            queue=self._queue.options.name,
            message_id=claim.message_id,
            operation=_COMPLETE,
        )

    def has_no_answer(self, error: Exception) -> bool:
        """Whether Redis did not answer, and the lease decides. What Redis refuses is another matter."""
        return isinstance(error, RetryBudgetExhaustedError) or self._queue.port.is_transient(error)

    async def leave_to_leases(self, claims: Sequence[Claim], error: Exception) -> None:
        """Log and emit that Redis has not confirmed the acks of a loop, which goes on."""
        cause = self._located(error)
        leased = self._queue.store.options.message_visibility_timeout_seconds is not None
        then = "it comes again when its lease runs out" if leased else "it has no lease and stays in processing"
        for claim in claims:
            text = "was handled, and Redis did not confirm its ack (%s); unless Redis has it nevertheless, %s"
            self._queue.emitter.log(ERROR, claim, text, named(cause), then)
            await self.emit(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim, cause)

    # -- failure

    async def handler_raised(self, claim: Claim, error: Exception) -> Ending:
        """End a message as its handler's error says.

        After a `complete()` without an answer the lease decides, as after an ack without one: a message that Redis
        has not let go comes again, and is not removed because Redis was out of reach. A retry policy comes first.
        """
        where = (error.operation, error.message_id) if isinstance(error, CleanupFailedError) else None
        if where == (_COMPLETE, claim.message_id) and self._queue.options.retry_policy is None:
            await self.emit(EventOperation.FAILED, EventOutcome.FAILURE, claim, error)
            self._warn(claim, "could not be completed; if Redis still has it, it comes again when its lease runs out")
            return Ending.UNCONFIRMED
        return await self.fail(claim, error)

    async def fail(self, claim: Claim, error: Exception) -> Ending:
        """End a message as its handler's outcome or the retry policy says; without either it is removed.

        Raises nothing outside of a loop: the caller sees the handler's error, whatever else goes wrong.
        """
        if self.can_apply(error):
            return await self._apply(claim, error)
        await self.emit(EventOperation.FAILED, EventOutcome.FAILURE, claim, error)
        queue, policy = self._queue, self._queue.options.retry_policy
        if policy is not None and policy.tries_again(error, claim.failures + 1):
            pause = policy.pause(claim.failures + 1, queue.port.random())
            return await self._retry_later(claim, pause, error)
        terminal_list, reason = queue.failed, "failed"
        if policy is not None:
            reason = "given up" if policy.gives_up(error) else "attempts used up"
            if queue.store.options.max_delivery_count is not None:
                terminal_list = queue.dead_letters
        if terminal_list is None and (self._keeps_failures or policy is not None):
            terminal_list = queue.dead_letters
        return await self._end(claim, terminal_list, reason, error)

    async def _end(self, claim: Claim, terminal_list: TerminalList | None, reason: str, error: Exception) -> Ending:
        """Remove a message that has failed for good, with its events and log lines."""
        queue = self._queue
        event = "dead" if terminal_list is queue.dead_letters else "failed"
        settled = await self._settle_failed(claim, terminal_list, reason, error, event)
        if settled is None:
            return Ending.UNCONFIRMED
        if settled.owned[0]:
            self._log_failed(claim, terminal_list, reason, error)
            await self.emit(EventOperation.NACK, EventOutcome.SUCCESS, claim)
            if terminal_list is queue.dead_letters:
                await self.emit(EventOperation.DLQ, EventOutcome.SUCCESS, claim, error)
        else:
            await self._failed_too_late(claim)
        await self.report_trimming(settled, terminal_list, claim)
        if not settled.owned[0]:
            return Ending.LOST
        return Ending.DEAD_LETTERED if terminal_list is queue.dead_letters else Ending.FAILED

    # -- what a handler decided

    def can_apply(self, error: Exception) -> bool:
        """Whether a handler raised an outcome, and the gateway can do it. Otherwise it counts as any exception."""
        if isinstance(error, RetryLater):
            return self._queue.store.capabilities.retries
        return isinstance(error, Discard | DeadLetter)

    async def _apply(self, claim: Claim, outcome: Exception) -> Ending:
        queue = self._queue
        if isinstance(outcome, Discard):
            return await self._discard(claim, outcome)
        if isinstance(outcome, DeadLetter):
            return await self._end(claim, queue.dead_letters, outcome.reason, outcome)
        assert isinstance(outcome, RetryLater)
        error = outcome.__cause__ if isinstance(outcome.__cause__, Exception) else outcome
        limit = self._attempt_limit()
        if limit is not None and self._attempts(claim) >= limit:
            return await self._end(claim, queue.dead_letters, "attempts used up", error)
        return await self._retry_later(claim, outcome.delay_seconds, error)

    def _attempt_limit(self) -> int | None:
        """How often a handler may fail with a message, or ask for it later."""
        policy = self._queue.options.retry_policy
        return self._queue.store.options.max_delivery_count if policy is None else policy.max_attempts

    def _attempts(self, claim: Claim) -> int:
        """How many of these attempts there were, with this one. Only without a policy do crashes count among them."""
        crashes = 1 if self._queue.options.retry_policy is not None else claim.delivery_count or 1
        return claim.failures + crashes

    async def _discard(self, claim: Claim, outcome: Discard) -> Ending:
        """Remove a message that its handler does not want."""
        completed = self._queue.completed
        settled = await self._settle_failed(claim, completed, outcome.reason, outcome, "discarded")
        if settled is None:
            return Ending.UNCONFIRMED
        if not settled.owned[0]:
            await self._failed_too_late(claim)
            return Ending.LOST
        self._queue.emitter.log(INFO, claim, "was discarded by its handler: %s", outcome.reason)
        await self.emit(EventOperation.DISCARDED, EventOutcome.SUCCESS, claim, outcome)
        if settled.trim_error is not None:
            await self.undisturbed(self.emit_trim_failed(settled.trim_error, claim))
        return Ending.DISCARDED

    async def _settle_failed(
        self, claim: Claim, terminal_list: TerminalList | None, reason: str, error: Exception, event: str
    ) -> Settled | None:
        """None if Redis did not confirm it."""
        queue = self._queue
        keeps_traceback = event != "discarded" and queue.options.keep_tracebacks
        trace = traceback_text(error) if keeps_traceback else None
        why = SettleReason(reason, error, queue.port.now() - claim.claimed_at, event, self._handled([claim]), trace)
        try:
            return await queue.store.settler.settle([claim], terminal_list, why, self.cancellations)
        except Exception as trouble:
            await self._not_cleaned_up([claim], self._located(trouble))
            return None

    async def _retry_later(self, claim: Claim, pause: float, error: Exception) -> Ending:
        try:
            handled = self._handled([claim])
            owned = await self._queue.store.settler.retry_later(claim, pause, error, self.cancellations, handled)
        except Exception as trouble:
            await self._not_cleaned_up([claim], self._located(trouble))
            return Ending.UNCONFIRMED
        if not owned:
            await self._failed_too_late(claim)
            return Ending.LOST
        if self.retries is not None:
            self.retries[claim.id] = self._queue.port.now() + pause
        attempt, limit = self._attempts(claim), self._attempt_limit()
        of = "" if limit is None else f" of {limit}"
        if isinstance(error, RetryLater):
            self._queue.emitter.log(INFO, claim, "is retried in %.3g s, after attempt %d%s", pause, attempt, of)
        else:
            text = "failed (%s) at attempt %d%s, retrying in %.3g s"
            self._warn(claim, text, described(error), attempt, of, pause, handler_error=error)
        await self.emit(EventOperation.RETRIED, EventOutcome.SUCCESS, claim)
        return Ending.RETRIED

    async def requeue(
        self, claims: Sequence[Claim], error: Exception | None, *, forgiven: bool, begun: bool = True
    ) -> int | None:
        """Return messages to the front of their queues, in order. Returns how many were still ours.

        Not ``begun``: no handler has had them. None if Redis did not confirm it.
        """
        settler = self._queue.store.settler
        try:
            requeued = await settler.requeue(claims, forgiven=forgiven, cancellations=self.cancellations)
        except Exception as trouble:
            await self._not_cleaned_up(claims, self._located(trouble), begun=begun)
            return None
        for claim, owned in zip(claims, requeued, strict=True):
            if owned:
                await self.emit(EventOperation.REQUEUED, EventOutcome.SUCCESS, claim, error)
            elif begun:
                await self._failed_too_late(claim)
            else:
                self._warn(claim, "was not started: its lease had ended, and another consumer has it")
                await self.emit(EventOperation.STALE_LEASE_NACK, EventOutcome.SKIPPED, claim)
        return sum(requeued)

    async def _not_cleaned_up(self, claims: Sequence[Claim], trouble: Exception, *, begun: bool = True) -> None:
        """Log and emit that messages could not be settled. In a loop, raise if Redis refuses that.

        A loop that goes on would get the same messages again and again, and never be rid of them.
        """
        for claim in claims:
            self._queue.emitter.log(ERROR, claim, "could not be cleaned up: %s", named(trouble))
            await self.emit(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim, trouble)
        if begun and self._in_loop and not self.has_no_answer(trouble):
            raise CleanupFailedError(
                f"the handler failed, and its message could not be settled ({named(trouble)}); correct what Redis "
                "refuses, then run the loop again",
                queue=self._queue.options.name,
                message_id=claims[0].message_id,
                operation="settle",
            ) from trouble

    async def _failed_too_late(self, claim: Claim) -> None:
        self._warn(claim, "failed after its lease had been lost")
        await self.emit(EventOperation.STALE_LEASE_NACK, EventOutcome.SKIPPED, claim)

    def _located(self, error: Exception) -> Exception:
        if isinstance(error, RedisMessageQueueError):
            error.locate(self._queue.options.name, "settle")
        return unwrap(error)

    # -- log lines

    def _warn(self, claim: Claim, text: str, *arguments: Any, **about_error: Any) -> None:
        self._queue.emitter.log(WARNING, claim, text, *arguments, **about_error)

    def _log_failed(self, claim: Claim, terminal_list: TerminalList | None, reason: str, error: Exception) -> None:
        """Say where a message that failed for good is now, or that it is nowhere and how that can be changed.

        The traceback follows, unless the caller gets the exception.
        """
        shows = self._keeps_failures and self._queue.options.keep_tracebacks
        if terminal_list is None:
            self._queue.emitter.log(ERROR, claim, _REMOVED, described(error), handler_error=error, traceback=shows)
        elif isinstance(error, DeadLetter):
            self._warn(claim, "went to the dead letters, as its handler decided: %s", error.reason)
        elif terminal_list is self._queue.dead_letters:
            text = "failed (%s) and went to the dead letters (%s)"
            self._warn(claim, text, described(error), reason, handler_error=error, traceback=shows)
        else:
            text = "failed (%s) and went to the failed list"
            self._warn(claim, text, described(error), handler_error=error, traceback=shows)

    async def report_trimming(self, settled: Settled, terminal_list: TerminalList | None, claim: Claim) -> None:
        """Say that a list could not be trimmed, or that messages are gone because it is full."""
        if settled.trim_error is not None:
            await self.undisturbed(self.emit_trim_failed(settled.trim_error, claim))
        if settled.cut:
            is_dead = terminal_list is self._queue.dead_letters
            log_cut(self._queue.options.name, DEAD_LETTERS_ARE_FULL if is_dead else _FAILED_LIST_IS_FULL, settled.cut)

    # -- events

    async def emit(
        self, operation: EventOperation, outcome: EventOutcome, claim: Claim, error: BaseException | None = None
    ) -> None:
        """An event with the time that the message was held."""
        emitter = self._queue.emitter
        if emitter.wanted:
            held_for = self._queue.port.now() - claim.claimed_at
            await self.undisturbed(
                emitter.emit(operation, outcome, claim=claim, error=error, duration_seconds=held_for)
            )

    async def emit_trim_failed(self, trim_error: str, claim: Claim | None = None) -> None:
        """Log and emit that a terminal list could not be trimmed."""
        queue = self._queue
        name = queue.options.name
        log.warning("%s: a list could not be trimmed: %s", name, trim_error, extra={"queue": name})
        error = CleanupFailedError(f"trimming failed: {trim_error}", queue=queue.options.name, operation="trim")
        await queue.emitter.emit(EventOperation.TRIM_FAILED, EventOutcome.FAILURE, claim=claim, error=error)

    # -- cancellations

    async def undisturbed(self, step: Coroutine[Any, Any, None]) -> None:
        """Run one step of a cleanup: a cancellation ends this step, not the steps after it."""
        try:
            await step
        except BaseException as error:
            if not self._queue.port.is_cancellation(error):
                raise
            self.cancellations.append(error)

    def raise_if_cancelled(self) -> None:
        """Raise the first cancellation that was noted, once."""
        if self.cancellations:
            first = self.cancellations[0]
            self.cancellations.clear()
            raise first


def append_to_context(error: BaseException, cancelled: BaseException) -> None:
    """Add a suppressed cancellation to the end of the error's chain."""
    last, seen = error, {id(error), id(cancelled)}
    while last.__context__ is not None and id(last.__context__) not in seen:
        last = last.__context__
        seen.add(id(last))
    if last is not cancelled:
        cancelled.__context__ = None
        last.__context__ = cancelled
