"""A block with several messages: claimed together, settled together or one by one."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt
from redis_message_queue.protocol.consume.consumer import ClaimedPayload, Consumer
from redis_message_queue.protocol.consume.delivery import NOT_ACKNOWLEDGED, append_to_context
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.consume.settle import PiggybackedAck
from redis_message_queue.stored.envelope import TIME_AT
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_ACK_AGAIN = (
    "acknowledge it again, or leave the block, which acknowledges it; if that fails too, it will be delivered again "
    "when its lease runs out, if the queue has leases"
)


class BatchBlock:
    """Several messages for one handler. Leaving settles those that the handler has not settled itself."""

    __slots__ = ("_claims", "_count", "_unanswered", "_unsettled", "_wait_seconds", "consumer", "messages", "queue")

    def __init__(self, queue: QueueProtocol, count: int, wait_seconds: float | None) -> None:
        self.queue = queue
        self.consumer = Consumer(queue, keeps_failures=True)
        self._count = count
        self._wait_seconds = wait_seconds
        self._claims: list[Claim] = []
        self._unsettled: dict[bytes, Claim] = {}  # by message id
        self._unanswered: dict[Claim, PiggybackedAck] = {}  # acks that were sent and may have arrived
        self.messages: list[ReceivedMessage[Any]] = []

    def claim(self) -> Coroutine[Any, Any, list[ClaimedPayload]]:
        """Claim messages, waiting for the first; there may be none."""
        self.queue.store.capabilities.require("batches")
        wait = self._wait_seconds
        if wait is None:
            wait = self.queue.store.options.message_wait_interval_seconds
        return self.consumer.claim(self._count, wait)

    def begin(self, taken: Sequence[ClaimedPayload]) -> ClaimAttempt | None:
        """Hold the messages for their handler; None without any. The shell marks the attempt as handed over."""
        if not taken:
            return None
        claims, holding = [claim for claim, _ in taken], self.consumer.holding
        self._claims = claims
        holding.start_heartbeat(holding.lease_for(claims), self.queue.options.heartbeat_interval_seconds)
        holding.begin_work_on(claims)
        self._unsettled = {claim.envelope.stored[1:TIME_AT]: claim for claim in claims}
        make, consumer = self.queue.message_class, self.consumer
        self.messages = [make(payload, claim, consumer) for claim, payload in taken]
        return self.consumer.offer()

    def abandon(self) -> None:
        """Entering was interrupted: the next claim or a drain recovers what was claimed."""
        self.consumer.abandon()

    async def ack(self, message: ReceivedMessage[Any]) -> bool:
        """Acknowledge one message now; whether it was still ours. After an error it can be acknowledged again."""
        claim = self._take(message, "ack")
        with self._settling(claim):
            owned = await self._ack_one(claim, _ACK_AGAIN)
        self.consumer.delivery.raise_if_cancelled()
        return owned

    async def fail(self, message: ReceivedMessage[Any], error: Exception) -> bool:
        """Treat one message now as if its handler had raised ``error``; whether it was still ours."""
        if not isinstance(error, Exception):
            raise ConfigurationTypeError(f"error must be an Exception, not {type(error).__name__}")
        claim = self._take(message, "fail")
        with self._settling(claim):
            ending = await self.consumer.delivery.fail(claim, error)
        self.consumer.delivery.raise_if_cancelled()
        return ending.was_ours

    def _take(self, message: ReceivedMessage[Any], operation: str) -> Claim:
        """The claim of a message, taken out so that no other call settles it meanwhile."""
        if not isinstance(message, ReceivedMessage):
            raise ConfigurationTypeError(f"message must be one of this batch, not {type(message).__name__}")
        self.consumer.holding.refuse_forked(message.id, operation)
        claim = self._unsettled.pop(bytes.fromhex(message.id), None)
        if claim is None or claim in self.consumer.completed:
            raise ConfigurationError(
                f"message {message.id} is not of this batch, or was settled already", message_id=message.id
            )
        return claim

    @contextmanager
    def _settling(self, claim: Claim) -> Iterator[None]:
        """A message that could not be settled stays in the batch."""
        try:
            with self.consumer.holding.lease_for([]).settling(claim):
                yield
        except BaseException:
            self._unsettled[claim.id] = claim
            raise

    async def _ack_one(self, claim: Claim, advice: str = NOT_ACKNOWLEDGED) -> bool:
        """Send an ack, or once more the one whose answer did not come: Redis counts both as one."""
        delivery = self.consumer.delivery
        ack = self._unanswered.get(claim)
        if ack is None:
            (ack,) = delivery.attach([claim])
            self._unanswered[claim] = ack
        try:
            settled = await ack.send_alone(delivery.cancellations)
        except Exception as trouble:
            raise await delivery.not_acknowledged([claim], trouble, advice) from trouble
        del self._unanswered[claim]
        ack.close()
        await delivery.acknowledged([claim], settled)
        return settled.owned[0]

    async def leave(self, error: BaseException | None) -> None:
        """Acknowledge the rest, or requeue it if the handler raised; an exit that is no `Exception` touches nothing."""
        unsettled, self._unsettled = self._unsettled, {}
        holding, delivery = self.consumer.holding, self.consumer.delivery
        claims = self._claims  # in their order
        if len(unsettled) < len(claims):
            claims = [claim for claim in claims if claim.id in unsettled]
        if self.consumer.completed:
            claims = [claim for claim in claims if claim not in self.consumer.completed]
        holding.end_work_on(unsettled.values())
        holding.end_lease()
        if holding.is_forked:
            return
        await delivery.undisturbed(holding.stop_heartbeat())
        try:
            if claims and error is None:
                await self._ack_rest(claims)
            elif claims and isinstance(error, Exception):
                # It counts as a delivery: one of them may be the poison.
                await delivery.requeue(claims, error, forgiven=False)
        finally:
            for ack in self._unanswered.values():
                ack.close()
            self._unanswered = {}
        if error is None:
            delivery.raise_if_cancelled()
        elif isinstance(error, Exception) and delivery.cancellations:
            append_to_context(error, delivery.cancellations[0])

    async def _ack_rest(self, claims: list[Claim]) -> None:
        """In one round trip, and one more for each ack that was sent before and went unanswered."""
        fresh = [claim for claim in claims if claim not in self._unanswered] if self._unanswered else claims
        if fresh:
            await self.consumer.delivery.ack(fresh)
        for claim in claims if self._unanswered else ():
            if claim in self._unanswered:
                await self._ack_one(claim)
