"""Cancels one message by its id: a delayed one is removed, a waiting one is marked and dropped by a later claim."""

from __future__ import annotations

from typing import Literal, cast

from redis_message_queue.protocol.calls import Calls, ReplySlot
from redis_message_queue.protocol.consume.claim import log_cancelled
from redis_message_queue.protocol.event_emitter import EventEmitter
from redis_message_queue.protocol.operate.trace import check_id
from redis_message_queue.protocol.port import Call
from redis_message_queue.values.events import EventOperation

CancelOutcome = Literal["cancelled", "marked", "in_flight", "unknown"]

# A mark goes with its message, or when a consumer finds the queue empty. This is for what remains: the mark of a
# message that was purged or dropped, in a queue that is never empty.
MARK_SECONDS = 30 * 86_400


class Canceller:
    """Cancels messages, each in constant time: it reads no list."""

    def __init__(self, calls: Calls, emitter: EventEmitter) -> None:
        self._calls = calls
        self._emitter = emitter

    async def cancel(self, message_id: str) -> CancelOutcome:
        """Cancel a message with a numbered call, so that a repetition answers what the first one did."""
        wanted = check_id(message_id)
        outcome = await self._send(wanted, withdraws=False)
        if outcome == "cancelled":
            log_cancelled(self._calls.keys.prefix, wanted.hex())
            await self._emitter.emit(EventOperation.CANCELLED, message_id=wanted.hex())
        return outcome

    async def withdraw(self, message_id: str) -> None:
        """Remove the mark of a message that is in another partition: claims look for it as long as it is there."""
        await self._send(check_id(message_id), withdraws=True)

    async def _send(self, wanted: bytes, *, withdraws: bool) -> CancelOutcome:
        calls = self._calls
        leased = int(calls.options.message_visibility_timeout_seconds is not None)

        def cancel(slot: ReplySlot) -> Call:
            command = calls.command("cancel", slot, leased, MARK_SECONDS * 1000, int(withdraws))
            return command, (), (slot.next_call(), wanted)

        return cast(CancelOutcome, (await calls.numbered(cancel)).decode())
