"""What becomes of messages when their handler is done: acknowledged, tried again later, kept as failed, or dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from redis_message_queue.errors import CleanupFailedError, ConfigurationError, RedisMessageQueueError
from redis_message_queue.events import EventOperation, EventOutcome
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.intake import Intake
from redis_message_queue.protocol.port import uncarried
from redis_message_queue.protocol.settle import Keep, Note, Settled, words_of
from redis_message_queue.protocol.tell import log, named

NOT_ACKNOWLEDGED = "it will be delivered again when its lease runs out, if the queue has leases"


class Outcome(Intake):
    """An intake that also settles what it took; cancellations are noted, and do not stop it."""

    __slots__ = ()

    # Whether a message that finally failed goes to the dead letters where there is no failed list. A single delivery
    # removes it instead: its handler's exception reaches the caller, who can keep it.
    keeps_failures: ClassVar[bool] = False

    async def succeed(self, claims: Sequence[Claim]) -> list[bool]:
        """Acknowledge; for each whether it was still ours. Raises if Redis could not be told."""
        keep = self.queue.completed
        settled, trouble = await self._settle(claims, keep, "completed")
        if trouble is not None:
            raise await self._not_acknowledged(claims, trouble)
        await self._tell_acknowledged(claims, settled)
        return settled.held

    async def _tell_acknowledged(self, claims: Sequence[Claim], settled: Settled) -> None:
        keep = self.queue.completed
        if not self.queue.teller.wanted and settled.trim_error is None and all(settled.held):
            return
        for claim, held in zip(claims, settled.held, strict=True):
            if held:
                await self.tell_outcome(EventOperation.ACK, EventOutcome.SUCCESS, claim)
                if keep is not None:
                    await self.tell_outcome(EventOperation.COMPLETED, EventOutcome.SUCCESS, claim)
            else:
                log.warning("message %s was handled after its lease had been lost", claim.message_id)
                await self.tell_outcome(EventOperation.STALE_LEASE_ACK, EventOutcome.SKIPPED, claim)
        if settled.trim_error is not None:
            await self._undisturbed(self.tell_trim(settled.trim_error, claims[0]))

    async def _not_acknowledged(
        self, claims: Sequence[Claim], trouble: Exception, advice: str = NOT_ACKNOWLEDGED
    ) -> CleanupFailedError:
        for claim in claims:
            await self.tell_outcome(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim, trouble)
        failure = CleanupFailedError(
            f"the handler succeeded and its message could not be acknowledged ({named(trouble)}); {advice}",
            queue=self.queue.options.name,
            message_id=claims[0].message_id,
            operation="ack",
        )
        if self._cancelled is not None:
            append_to_context(failure, self._cancelled)
        failure.__cause__ = trouble
        return failure

    async def complete(self, claim: Claim, publish: Sequence[Any]) -> None:
        """Acknowledge from inside the handler, with what the message has led to: all of it or nothing."""
        self.refuse_inherited(claim.message_id, "complete")
        if claim in self.settled:
            raise ConfigurationError("this message was completed already", message_id=claim.message_id)
        queue, started, lease = self.queue, self.queue.port.now(), self.hold([claim])
        targets = await queue.hand_off.targets(publish)
        cancellations: list[BaseException] = []
        try:
            with lease.settling(claim):
                published, complaint = await queue.hand_off.complete(claim, targets, cancellations)
                self.settled.add(claim)
        finally:
            if cancellations:
                self._cancelled = self._cancelled or cancellations[0]
        await self._tell_acknowledged([claim], Settled([True], complaint))
        if targets:
            await self.tell_outcome(EventOperation.HANDED_OFF, EventOutcome.SUCCESS, claim)
        for target, result in zip(targets, published, strict=True):
            if target.queue.teller.wanted:
                await target.queue.outbox.tell_published(target.ids, result, started)
        if cancellations:
            raise cancellations[0]

    async def fail_one(self, claim: Claim, error: Exception) -> bool:
        """The handler raised: try again later if there is a policy, else the end. Whether it was still ours.

        Nothing is raised from here: the handler's error is what the caller sees, whatever else goes wrong.
        """
        await self.tell_outcome(EventOperation.FAILED, EventOutcome.FAILURE, claim, error)
        policy = self.queue.options.retry_policy
        if policy is not None and policy.tries_again(error, claim.failures + 1):
            pause = policy.pause(claim.failures + 1, self.queue.port.chance())
            return await self._try_later(claim, pause, error)
        keep, reason = self.queue.failed, "failed"
        if policy is not None:
            reason = "given up" if policy.gives_up(error) else "attempts used up"
            if self.queue.store.options.max_delivery_count is not None:
                keep = self.queue.dead_letters
        if keep is None and (self.keeps_failures or policy is not None):
            keep = self.queue.dead_letters
        settled, trouble = await self._settle([claim], keep, reason, error)
        if trouble is not None:
            await self._not_cleaned_up(claim, trouble)
        elif settled.held[0]:
            self._log_failed(claim, keep, reason, error)
            await self.tell_outcome(EventOperation.NACK, EventOutcome.SUCCESS, claim)
            if keep is self.queue.dead_letters:
                await self.tell_outcome(EventOperation.DLQ, EventOutcome.SUCCESS, claim, error)
        else:
            await self._failed_too_late(claim)
        if settled.trim_error is not None:
            await self._undisturbed(self.tell_trim(settled.trim_error, claim))
        if settled.cut:
            self._log_cut(keep, settled.cut)
        return settled.held[0]

    def _log_failed(self, claim: Claim, keep: Keep | None, reason: str, error: Exception) -> None:
        """Say where a message that finally failed is now, or that it is nowhere and how that can be changed."""
        queue, kind = self.queue.options.name, type(error).__name__
        if keep is None:
            log.error(
                "%s: message %s was removed because its handler raised %s: %s. To keep such messages, set "
                "enable_failed_queue=True or a retry_policy, or handle them with run() or process_messages()",
                *(queue, claim.message_id, kind, words_of(error)),
            )
        elif keep is self.queue.dead_letters:
            log.warning("%s: message %s went to the dead letters (%s: %s)", queue, claim.message_id, reason, kind)

    def _log_cut(self, keep: Keep | None, cut: int) -> None:
        """Say that failed messages are gone, because their list is full."""
        name, limit = "failed list", "max_failed_length"
        if keep is self.queue.dead_letters:
            name, limit = "dead-letter list", "max_dead_letter_length"
        log.warning(
            "%s: the %s is full, so its %d oldest messages were deleted; %s sets how many it keeps, None for all",
            *(self.queue.options.name, name, cut, limit),
        )

    async def _try_later(self, claim: Claim, pause: float, error: Exception) -> bool:
        cancellations: list[BaseException] = []
        try:
            held = await self.queue.store.settler.put_off(claim, pause, error, cancellations)
        except Exception as trouble:
            await self._not_cleaned_up(claim, trouble)
            return False
        finally:
            self._note(cancellations)
        if held:
            await self.tell_outcome(EventOperation.RETRIED, EventOutcome.SUCCESS, claim)
        else:
            await self._failed_too_late(claim)
        return held

    async def give_back(
        self, claims: Sequence[Claim], error: Exception | None, *, forgiven: bool, begun: bool = True
    ) -> int:
        """To the heads of their lines, in their order; how many of them were still ours. Not ``begun``: no handler
        has had them."""
        cancellations: list[BaseException] = []
        try:
            given = await self.queue.store.settler.give_back(claims, forgiven=forgiven, cancellations=cancellations)
        except Exception as trouble:
            for claim in claims:
                await self._not_cleaned_up(claim, trouble)
            return 0
        finally:
            self._note(cancellations)
        for claim, held in zip(claims, given, strict=True):
            if held:
                await self.tell_outcome(EventOperation.GIVEN_BACK, EventOutcome.SUCCESS, claim, error)
            elif begun:
                await self._failed_too_late(claim)
            else:
                log.warning(
                    "%s: message %s was not started: its lease had ended, and another consumer has it",
                    *(self.queue.options.name, claim.message_id),
                )
                await self.tell_outcome(EventOperation.STALE_LEASE_NACK, EventOutcome.SKIPPED, claim)
        return sum(given)

    async def _not_cleaned_up(self, claim: Claim, trouble: Exception) -> None:
        log.error("message %s could not be cleaned up: %s", claim.message_id, named(trouble))
        await self.tell_outcome(EventOperation.CLEANUP_FAILED, EventOutcome.FAILURE, claim, trouble)

    async def _failed_too_late(self, claim: Claim) -> None:
        log.warning("message %s failed after its lease had been lost", claim.message_id)
        await self.tell_outcome(EventOperation.STALE_LEASE_NACK, EventOutcome.SKIPPED, claim)

    async def _settle(
        self, claims: Sequence[Claim], keep: Keep | None, reason: str, error: Exception | None = None
    ) -> tuple[Settled, Exception | None]:
        cancellations: list[BaseException] = []
        settled, trouble = Settled([False] * len(claims)), None
        note, event = None, None
        if error is not None:
            event = "dead" if keep is self.queue.dead_letters else "failed"
        if keep is not None or event is not None:
            note = Note(reason, error, self.queue.port.now() - claims[0].claimed_at, event)
        try:
            settled = await self.queue.store.settler.settle(claims, keep, note, cancellations)
        except Exception as caught:
            trouble = uncarried(caught)
            if isinstance(caught, RedisMessageQueueError):
                caught.locate(self.queue.options.name, "settle")
        self._note(cancellations)
        return settled, trouble

    def _raise_if_cancelled(self) -> None:
        if self._cancelled is not None:
            cancelled, self._cancelled = self._cancelled, None
            raise cancelled

    def _note(self, cancellations: list[BaseException]) -> None:
        if cancellations and self._cancelled is None:
            self._cancelled = cancellations[0]


def append_to_context(error: BaseException, cancelled: BaseException) -> None:
    """Make a suppressed cancellation discoverable at the end of the error's chain."""
    last, seen = error, {id(error), id(cancelled)}
    while last.__context__ is not None and id(last.__context__) not in seen:
        last = last.__context__
        seen.add(id(last))
    if last is not cancelled:
        cancelled.__context__ = None
        last.__context__ = cancelled
