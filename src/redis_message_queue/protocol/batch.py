"""Several messages in the hands of one handler: claimed together, settled together or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.outcome import Outcome, append_to_context

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol


class BatchDelivery(Outcome):
    """Entering claims messages in one script, leaving settles those that the handler has not settled itself."""

    __slots__ = ("_claims", "_count", "_wait_seconds", "messages")

    keeps_failures = True

    def __init__(self, queue: QueueProtocol, count: int, wait_seconds: float | None) -> None:
        super().__init__(queue)
        self._count = count
        self._wait_seconds = wait_seconds
        self._claims: dict[str, Claim] = {}  # of the messages that are not settled yet, in their order
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
        self._claims = {claim.message_id: claim for claim in claims}
        self.messages = [self.received(claim, payload) for claim, payload in taken]
        claimer.hand_over(self.attempt)

    async def ack(self, message: ReceivedMessage) -> bool:
        """Acknowledge one message now; whether it was still ours."""
        (held,) = await self.succeed([self._settling(message, "ack")])
        self._raise_if_cancelled()
        return held

    async def fail(self, message: ReceivedMessage, error: Exception) -> bool:
        """Take the failure path for one message now; whether it was still ours."""
        if not isinstance(error, Exception):
            raise ConfigurationTypeError(f"error must be an Exception, not {type(error).__name__}")
        held = await self.fail_one(self._settling(message, "fail"), error)
        self._raise_if_cancelled()
        return held

    def _settling(self, message: ReceivedMessage, operation: str) -> Claim:
        if not isinstance(message, ReceivedMessage):
            raise ConfigurationTypeError(f"message must be one of this batch, not {type(message).__name__}")
        self.refuse_inherited(message.id, operation)
        claim = self._claims.pop(message.id, None)
        if claim is None or claim in self.settled:
            raise ConfigurationError(
                f"message {message.id} is not of this batch, or was settled already", message_id=message.id
            )
        if self._lease is not None:
            self._lease.release([claim])
        return claim

    async def leave(self, error: BaseException | None) -> None:
        """Acknowledge the rest, or give it back if the handler raised; other exits touch nothing."""
        claims = [claim for claim in self._claims.values() if claim not in self.settled]
        self._claims = {}
        self.end_lease()
        if self.is_inherited:
            return
        await self.stop_heartbeat()
        if claims and error is None:
            await self.succeed(claims)
        elif claims and isinstance(error, Exception):
            # It counts as a delivery: one of them may be the poison.
            await self.give_back(claims, error, forgiven=False)
        if error is None:
            self._raise_if_cancelled()
        elif isinstance(error, Exception) and self._cancelled is not None:
            append_to_context(error, self._cancelled)
