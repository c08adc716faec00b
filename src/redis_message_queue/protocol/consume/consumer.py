"""How a consumer gets messages: it recovers what an earlier claim took, or claims, and reads what came."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.consume.claim import Claim, Claimant, ClaimResult
from redis_message_queue.protocol.consume.claim_attempt import IDLE, ClaimAttempt
from redis_message_queue.protocol.consume.claimer import PATIENCE_SECONDS
from redis_message_queue.protocol.consume.delivery import Delivery
from redis_message_queue.protocol.consume.holding import Holding
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.consume.settle import PiggybackedAck, SettleReason
from redis_message_queue.protocol.port import unwrap
from redis_message_queue.stored.codecs import Codec, decode_with
from redis_message_queue.values.errors import (
    ConfigurationError,
    CorruptMessageError,
    GatewayContractError,
    RedisMessageQueueError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.values.events import EventOperation, EventOutcome
from redis_message_queue.values.plain_values import class_name, described

if TYPE_CHECKING:
    from redis_message_queue.protocol.drain import Entry
    from redis_message_queue.protocol.parts import Part
    from redis_message_queue.protocol.queue import QueueProtocol

_ONE_ATTEMPT_SECONDS = 0.5  # how long a claim may take while other queues wait for it
_LATE_ANSWERS = 3  # how often a claim is repeated whose answers come when the leases have ended

ClaimedPayload = tuple[Claim, Any]
"""A message that was claimed, and its payload as the handler gets it."""


class Consumer(Claimant):
    """One consumer of a queue. It claims messages; `holding` has their leases, `delivery` ends their delivery."""

    __slots__ = (*("_entry", "attempt", "completed", "delivery", "holding", "queue", "refused_at_claim"),)

    def __init__(self, queue: QueueProtocol, *, keeps_failures: bool = False, in_loop: bool = False) -> None:
        super().__init__(queue.options.name)
        self.queue = queue
        self.has_time_limit = not in_loop  # nobody waits for a loop to end
        self.holding = Holding(queue)
        self.delivery = Delivery(queue, keeps_failures=keeps_failures, in_loop=in_loop)
        self.attempt: ClaimAttempt | None = None
        self.completed: set[Claim] = set()  # what the handler has settled itself
        self.refused_at_claim = 0  # how many messages its claims moved to the dead letters
        self._entry: Entry | None = None  # of the claim that is under way

    def is_stopped(self) -> bool:
        return self.queue.is_stopped()

    # -- claiming

    async def claim(
        self, count: int | None, wait_seconds: float, acks: list[PiggybackedAck] | None = None
    ) -> list[ClaimedPayload]:
        """Claim up to ``count`` messages that can be read, and send acks along; others go to the dead letters.

        Without a count it claims as many as are `wanted` when the request is sent. The messages can be recovered
        until their attempt is handed over.
        """
        queue, claimer = self.queue, self.queue.store.claimer
        began, late, left = queue.port.now(), 0, wait_seconds
        self.wait_ends_at = limit = None
        if self.has_time_limit:
            self.wait_ends_at = began + (wait_seconds if wait_seconds > PATIENCE_SECONDS else PATIENCE_SECONDS)
            limit = began + wait_seconds + claimer.listening_seconds
        if self.has_one_attempt:
            limit = began + _ONE_ATTEMPT_SECONDS
        try:
            while not queue.gate.is_shut:
                # A claim that is on its way may take a message: a drain waits until its outcome is known.
                self._entry = entry = queue.gate.enter()
                try:
                    started, result = queue.port.now() if queue.emitter.wanted else 0.0, None
                    if claimer.unconfirmed:
                        result = await self._recover(count or self.wanted(), limit)
                        left = max(0.0, wait_seconds - (queue.port.now() - began))
                    if result is None:
                        self.attempt = claimer.attempt()
                        result = await claimer.claim(self.attempt, self, left, count, acks, limit)
                        if result.again and not result.claims:  # a claim before this one can be recovered now
                            self.release()
                            left = max(0.0, wait_seconds - (queue.port.now() - began))
                            continue
                    if self.has_time_limit and self._came_too_late(result.claims):
                        late += 1
                        self.release()  # the next round asks which of them are still ours, and renews their leases
                        if late < _LATE_ANSWERS or queue.port.now() - began < wait_seconds:
                            continue
                        self._log_lateness(result.claims)
                        return []
                    if queue.emitter.wanted:
                        await self._emit_claimed(result, started)
                    if not result.claims:
                        self.release()
                        return []
                except BaseException:
                    self.release()  # a drain must find it among the unconfirmed claims
                    raise
                finally:
                    queue.gate.leave(entry)
                if readable := await self._readable(result.claims):
                    return readable
                # Only now: settling them has a slot of its own, and until then their claim could be recovered.
                assert self.attempt is not None
                self.attempt.apply("settle")
                self.release()
                left = max(0.0, wait_seconds - (queue.port.now() - began))
            return []
        except Exception as error:
            await self._emit_claim_failed(error)
            raise

    def _came_too_late(self, claims: list[Claim]) -> bool:
        """Whether their leases have ended before we got the answer: no handler may start with such a message.

        A loop looks at its leases itself, when it begins with a message.
        """
        lease = self.queue.store.options.message_visibility_timeout_seconds
        if lease is None or not claims or self.attempt is None or self.attempt.state is IDLE:
            return False
        return self.queue.port.now() - claims[0].claimed_at >= lease

    def _log_lateness(self, claims: list[Claim]) -> None:
        lease = self.queue.store.options.message_visibility_timeout_seconds
        text = "and %d more cannot be delivered: the lease of %s s ends before Redis has answered the claim. %s"
        hint = "Set a longer visibility_timeout_seconds."
        self.queue.emitter.log(WARNING, claims[0], text, len(claims) - 1, lease, hint)

    async def _recover(self, count: int, limit: float | None) -> ClaimResult | None:
        """What an unconfirmed claim took; for a stopped consumer as well, because it is no new work."""
        claimer, settler = self.queue.store.claimer, self.queue.store.settler
        while claimer.unconfirmed:
            recovered = await claimer.recover(self, limit=limit)
            if recovered is None:
                return None
            self.attempt, result = recovered
            result.claims, surplus = result.claims[:count], result.claims[count:]
            if surplus:
                await settler.requeue(surplus, forgiven=True)
            if result.claims or result.unconfirmed:
                return result
            self.release()
        return None

    async def _readable(self, claims: list[Claim]) -> list[ClaimedPayload]:
        readable, codec, decodes = [], self.queue.builder.codec, self.queue.store.decodes
        undecodable = UnicodeDecodeError if codec is None else Exception
        for claim in claims:
            try:
                payload = claim.read(decode=decodes) if codec is None else decode_with(codec, claim.envelope.payload)
                readable.append((claim, payload))
            except undecodable as error:
                await self._dead_letter(claim, error, codec)
        return readable

    async def _dead_letter(self, claim: Claim, trouble: Exception, codec: Codec[Any] | None) -> None:
        queue = self.queue
        if isinstance(trouble, UnicodeDecodeError) and codec is None:
            what = f"the payload is not UTF-8 (byte {trouble.start}), and the client decodes responses"
        else:
            what = f"the payload cannot be decoded by {class_name(codec)} ({described(trouble)})"
        error = CorruptMessageError(
            what,
            queue=self.queue_name,
            message_id=claim.message_id,
            operation="claim",
        )
        reason = SettleReason("undecodable", error, event="dead")
        settled = await queue.store.settler.settle([claim], queue.dead_letters, reason)
        queue.emitter.log(WARNING, claim, "cannot be decoded and went to the dead letters (%s)", error)
        if settled.owned[0]:
            self.refused_at_claim += 1
            await queue.emitter.emit(EventOperation.DLQ, claim=claim, error=error)
        await self.delivery.report_trimming(settled, queue.dead_letters, claim)

    def offer(self) -> ClaimAttempt:
        """The handler is about to get the messages; the code that returns them marks the attempt as handed over."""
        assert self.attempt is not None
        self.queue.store.claimer.offer(self.attempt)
        return self.attempt

    def release(self) -> None:
        """Be done with the attempt: what it may have taken is recovered by the next claim or a drain."""
        if self.attempt is not None:
            self.queue.store.claimer.release(self.attempt, self)
            self.attempt = None

    def abandon(self) -> None:
        """Claiming was interrupted; the next claim or a drain recovers what was claimed."""
        self.release()
        self.queue.store.claimer.leave_to_others(self)
        self.holding.abandon()

    # -- what a claim reports

    async def on_retry(self, error: Exception, tries: int) -> None:
        await self.queue.emitter.emit(EventOperation.RETRY_ATTEMPT, EventOutcome.FAILURE, error=error, attempt=tries)

    async def on_dead(self, result: ClaimResult) -> None:
        await super().on_dead(result)
        for dead in result.dead:
            self.refused_at_claim += not dead.is_cancelled
            operation = EventOperation.CANCELLED if dead.is_cancelled else EventOperation.DLQ
            await self.queue.emitter.emit(operation, message_id=dead.message_id, delivery_count=dead.delivery_count)
        if result.trim_error is not None:
            await self.delivery.emit_trim_failed(result.trim_error)

    def on_attempt(self, attempt: ClaimAttempt) -> None:
        self.attempt = attempt

    async def on_tick(self, limit: float | None, part: Part) -> None:
        await self.queue.scheduler.publish_due(limit, part)

    def on_wait(self, waiting: bool) -> None:
        if self._entry is not None:
            self.queue.gate.rest(self._entry, waiting)

    async def _emit_claimed(self, result: ClaimResult, started: float) -> None:
        emit, waited = self.queue.emitter.emit, self.queue.port.now() - started
        for claim in result.claims:
            if claim.reclaimed or result.recovered:
                await emit(EventOperation.CLAIM_RECLAIM, claim=claim)
            await emit(EventOperation.CLAIM, claim=claim, duration_seconds=waited)
        if not (result.claims or result.unconfirmed):
            await emit(EventOperation.CLAIM_EMPTY, EventOutcome.SKIPPED, duration_seconds=waited)

    async def _emit_claim_failed(self, error: Exception) -> None:
        emit = self.queue.emitter.emit
        if isinstance(error, RedisMessageQueueError):
            error.locate(self.queue_name, "claim")
        if isinstance(error, RetryBudgetExhaustedError):
            await emit(EventOperation.RETRY_EXHAUSTED, EventOutcome.FAILURE, error=error)
        await emit(EventOperation.CLAIM, EventOutcome.FAILURE, error=unwrap(error))

    # -- what a message asks

    def received(self, claim: Claim, payload: Any) -> ReceivedMessage[Any]:
        """The message as its handler gets it."""
        if claim.delivery_count is None:
            raise GatewayContractError(
                "a custom gateway delivers payloads only: there is no id, delivery count or time",
                queue=self.queue_name,
                operation="current_message",
            )
        return self.queue.message_class(payload, claim, self)

    def is_lost(self, claim: Claim) -> bool:
        """Whether another consumer may have it."""
        return self.holding.lease_for([claim]).is_lost(claim)

    async def complete(self, claim: Claim, publish: Sequence[Any]) -> None:
        """Acknowledge a message from inside its handler and publish its results: all of it or nothing."""
        self.holding.refuse_forked(claim.message_id, "complete")
        if claim in self.completed:
            raise ConfigurationError("this message was completed already", message_id=claim.message_id)
        await self.delivery.complete(claim, publish, self.holding.lease_for([claim]), self.completed)
