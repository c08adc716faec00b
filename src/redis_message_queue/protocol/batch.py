"""Several messages in the hands of one handler: claimed together, settled together or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError, RedisMessageQueueError
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.outcome import NOT_ACKNOWLEDGED, Outcome, append_to_context
from redis_message_queue.protocol.port import uncarried
from redis_message_queue.protocol.settle import Note, Riding

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_ACK_AGAIN = (
    "acknowledge it again, or leave the block, which acknowledges it; if that fails too, it will be delivered again "
    "when its lease runs out, if the queue has leases"
)


class BatchDelivery(Outcome):
    """Entering claims messages in one script, leaving settles those that the handler has not settled itself."""

    __slots__ = ("_claims", "_count", "_unanswered", "_wait_seconds", "messages")

    keeps_failures = True

    def __init__(self, queue: QueueProtocol, count: int, wait_seconds: float | None) -> None:
        super().__init__(queue)
        self._count = count
        self._wait_seconds = wait_seconds
        self._claims: dict[str, Claim] = {}  # of the messages that are not settled yet
        self._unanswered: dict[Claim, Riding] = {}  # acknowledgements that were sent, and nobody knows what came of it
        self.messages: list[ReceivedMessage] = []

    async def enter(self) -> None:
        """Claim up to so many messages, waiting for the first; there may be none."""
        options, claimer = self.queue.store.options, self.queue.store.claimer
        self._process = self.queue.port.process()  # whoever enters it; a fork may have come since it was made
        claimer.allow_batches()
        wait = options.message_wait_interval_seconds if self._wait_seconds is None else self._wait_seconds
        taken = await self.take(self._count, wait)
        if not taken:
            return
        assert self.attempt is not None
        claims = [claim for claim, _ in taken]
        lease = self.hold(claims)
        self.start_heartbeat(lease)
        self.begin_work_on(claims)
        self._claims = {claim.message_id: claim for claim in claims}
        self.messages = [self.received(claim, payload) for claim, payload in taken]
        claimer.hand_over(self.attempt)

    async def ack(self, message: ReceivedMessage) -> bool:
        """Acknowledge one message now; whether it was still ours. After an error it can be acknowledged again."""
        claim = self._unsettled(message, "ack")
        with self._settling(claim):
            held = await self._acknowledge(claim, _ACK_AGAIN)
        self._raise_if_cancelled()
        return held

    async def fail(self, message: ReceivedMessage, error: Exception) -> bool:
        """Take the failure path for one message now; whether it was still ours."""
        if not isinstance(error, Exception):
            raise ConfigurationTypeError(f"error must be an Exception, not {type(error).__name__}")
        claim = self._unsettled(message, "fail")
        with self._settling(claim):
            held = await self.fail_one(claim, error)
        self._raise_if_cancelled()
        return held

    def _unsettled(self, message: ReceivedMessage, operation: str) -> Claim:
        if not isinstance(message, ReceivedMessage):
            raise ConfigurationTypeError(f"message must be one of this batch, not {type(message).__name__}")
        self.refuse_inherited(message.id, operation)
        claim = self._claims.pop(message.id, None)  # nobody else settles it meanwhile
        if claim is None or claim in self.settled:
            raise ConfigurationError(
                f"message {message.id} is not of this batch, or was settled already", message_id=message.id
            )
        return claim

    @contextmanager
    def _settling(self, claim: Claim) -> Iterator[None]:
        """A message that could not be settled stays in the batch."""
        try:
            with self.hold([]).settling(claim):
                yield
        except BaseException:
            self._claims[claim.message_id] = claim
            raise

    async def _acknowledge(self, claim: Claim, advice: str = NOT_ACKNOWLEDGED) -> bool:
        """Send an acknowledgement, or once more the one whose answer did not come: Redis counts both as one."""
        settler, keep = self.queue.store.settler, self.queue.completed
        sent = self._unanswered.get(claim)
        if sent is None:
            note = None if keep is None else Note("completed", None, self.queue.port.now() - claim.claimed_at)
            sent = self._unanswered[claim] = settler.ride([claim], keep, note)
        cancellations: list[BaseException] = []
        try:
            settled = await settler.arrive(sent, cancellations)
        except Exception as trouble:
            if isinstance(trouble, RedisMessageQueueError):
                trouble.locate(self.queue.options.name, "settle")
            raise await self._not_acknowledged([claim], uncarried(trouble), advice) from trouble
        finally:
            self._note(cancellations)
        del self._unanswered[claim]
        settler.dismiss(sent)
        await self._tell_acknowledged([claim], settled)
        return settled.held[0]

    async def leave(self, error: BaseException | None) -> None:
        """Acknowledge the rest, or give it back if the handler raised; other exits touch nothing."""
        claims = [self._claims[one.id] for one in self.messages if one.id in self._claims]
        claims = [claim for claim in claims if claim not in self.settled]
        self.end_work_on(self._claims.values())
        self._claims = {}
        self.end_lease()
        if self.is_inherited:
            return
        await self.stop_heartbeat()
        try:
            if claims and error is None:
                await self._acknowledge_all(claims)
            elif claims and isinstance(error, Exception):
                # It counts as a delivery: one of them may be the poison.
                await self.give_back(claims, error, forgiven=False)
        finally:
            for sent in self._unanswered.values():
                self.queue.store.settler.dismiss(sent)
            self._unanswered = {}
        if error is None:
            self._raise_if_cancelled()
        elif isinstance(error, Exception) and self._cancelled is not None:
            append_to_context(error, self._cancelled)

    async def _acknowledge_all(self, claims: list[Claim]) -> None:
        """In one round trip, and one more for each acknowledgement that went unanswered before."""
        fresh = [claim for claim in claims if claim not in self._unanswered]
        if fresh:
            await self.succeed(fresh)
        for claim in claims:
            if claim in self._unanswered:
                await self._acknowledge(claim)
