"""How a message gets into the line: once for each call, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from redis_message_queue import envelope
from redis_message_queue.errors import PublishNotConfirmedError, QueueBackpressureError
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls, Slot
from redis_message_queue.protocol.confirm import FULL, Confirmer, Sent, dropped_ids
from redis_message_queue.protocol.port import Argument


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a publish: in the line or suppressed, and who had to leave for it."""

    accepted: bool
    dropped: tuple[str, ...] = ()
    message_id: bytes | None = None  # where it is not the one that the caller made


_ACCEPTED, _SUPPRESSED = Published(True), Published(False)


class Publisher:
    """Publishes under the queue's overload policy."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._options = calls.options
        self._blocks = calls.options.pending_overload_policy == "block"
        self._rules = _rules(calls.options)
        self._confirmer = Confirmer(calls)

    async def publish(
        self, message_id: bytes, payload: bytes, marker: str | None, stopped: Callable[[], bool]
    ) -> Published:
        """Put a message into the line; at the limit raise, wait or drop, as the queue says."""
        calls, confirms = self._calls, self._confirmer.wanted
        if confirms:
            await self._confirmer.refuse_if_impossible()
        slot = calls.borrow()
        sent: Sent | None = None
        try:
            head = envelope.head(message_id)
            open_keys = () if marker is None else (marker,)
            if self._blocks:
                arguments, reply = await self._wait_for_room(slot, head, payload, open_keys, stopped)
            else:
                arguments = (slot.next_call(), head, payload, *self._rules)
                reply = await calls.call(slot.publish, arguments, open_keys=open_keys)
            if confirms and reply != FULL:
                sent = Sent(slot, message_id, payload, arguments, open_keys, calls.port.now(), calls, reply)
                reply = await self._confirmer.confirm(sent)
        finally:
            # Also after an unknown outcome: a higher number on the same slot shuts out a straggler. Only a publish
            # that may be repeated keeps it.
            if sent is None or sent.settled:
                calls.give_back(slot)
        return self._published(reply, message_id)

    def repeat(self, error: PublishNotConfirmedError, payload: bytes) -> tuple[bytes, Coroutine[Any, Any, Published]]:
        """Make a publish that was not confirmed once more: the same call, so it counts once."""
        sent = self._confirmer.repeatable(error, payload)
        return sent.message_id, self._repeat(sent)

    async def _repeat(self, sent: Sent) -> Published:
        self._confirmer.begin(sent)
        try:
            reply = await self._confirmer.confirm(sent)
        finally:
            sent.repeating = False
        self._calls.give_back(sent.slot)
        published = self._published(reply, sent.message_id)
        return replace(published, dropped=sent.news())

    def _published(self, reply: Any, message_id: bytes) -> Published:
        if reply == FULL:
            raise self._full(message_id)
        if isinstance(reply, bytes):
            return Published(True, dropped_ids(reply))
        return _ACCEPTED if reply == 1 else _SUPPRESSED

    async def _wait_for_room(
        self, slot: Slot, head: bytes, payload: bytes, open_keys: tuple[str, ...], stopped: Callable[[], bool]
    ) -> tuple[tuple[Argument, ...], Any]:
        """Ask again, 10 to 100 ms apart, until there is room, time is up or somebody stops us."""
        port = self._calls.port
        patience = self._options.pending_overload_block_timeout_seconds
        started, pause = port.now(), 0.01
        waits: Callable[[], bool] | None = None  # whoever stops us ends the waiting, not the first try
        while True:
            left = patience - (port.now() - started)
            arguments: tuple[Argument, ...] = (slot.next_call(), head, payload, *self._rules)
            reply = await self._calls.call(
                slot.publish, arguments, open_keys=open_keys, budget=max(left, 0), stopped=waits
            )
            waits = stopped
            left = patience - (port.now() - started)
            if reply != FULL or left <= 0 or stopped():
                return arguments, reply
            await port.sleep(min(pause, left))
            pause = min(0.1, pause * 1.5)

    def _full(self, message_id: bytes) -> QueueBackpressureError:
        limit = self._options.max_pending_length
        waited = f" for {self._options.pending_overload_block_timeout_seconds} s" if self._blocks else ""
        return QueueBackpressureError(
            f"the queue is full{waited}: max_pending_length is {limit}; nothing was published, try again "
            "when consumers have caught up",
            message_id=message_id.hex(),
            operation="publish",
        )


def _rules(options: GatewayOptions) -> tuple[Argument, ...]:
    """What the script needs to know of the queue's rules; a limit that is not set is not sent."""
    window_ms = max(1, int(options.message_deduplication_log_ttl_seconds * 1000))
    if options.max_pending_length is None:
        return (window_ms,)
    overload = "drop" if options.pending_overload_policy == "drop_oldest" else "refuse"
    return (window_ms, options.max_pending_length, overload)
