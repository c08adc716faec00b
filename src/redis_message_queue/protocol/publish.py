"""How messages get into their lines: once for each call, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis_message_queue import envelope
from redis_message_queue.errors import PublishNotConfirmedError, QueueBackpressureError
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls, Slot
from redis_message_queue.protocol.confirm import FULL, Confirmer, Sent, dropped_ids
from redis_message_queue.protocol.port import Argument

NOTHING_PUBLISHED = "nothing was published"  # what `publish_many` says more exactly
_CHUNK_MESSAGES = 1_000
_CHUNK_BYTES = 4_000_000  # a script that copies more than this is felt by everybody else


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message on its way in."""

    payload: bytes
    marker: str | None = None  # the whole key that remembers its deduplication key
    tenant: bytes = b""
    due: str = ""  # microseconds of the server's clock, '+' and microseconds from now, or '' for at once
    extras: bytes = b""

    @property
    def is_bare(self) -> bool:
        """Nothing but a payload, to be delivered as soon as may be."""
        return not (self.tenant or self.due or self.extras)


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a chunk: each message in the line or suppressed, and who had to leave for it."""

    accepted: list[bool]
    dropped: tuple[str, ...] = ()
    message_id: bytes | None = None  # where it is not the one that the caller made


_ACCEPTED, _SUPPRESSED = Published([True]), Published([False])


class Publisher:
    """Publishes under the queue's overload policy."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._options = calls.options
        self._blocks = calls.options.pending_overload_policy == "block"
        self._limited = bool(calls.options.max_pending_length or calls.options.max_pending_per_tenant)
        self._window_ms = max(1, int(calls.options.message_deduplication_log_ttl_seconds * 1000))
        self._confirmer = Confirmer(calls)

    async def publish_one(
        self, message_id: bytes, payload: bytes, marker: str | None, stopped: Callable[[], bool]
    ) -> Published:
        """The same for a message with a payload alone, by the shortest way that the queue's options allow."""
        if self._limited or self._confirmer.wanted:
            return await self.publish([message_id], [Outgoing(payload, marker)], stopped)
        calls = self._calls
        await calls.open_journal()
        slot = calls.borrow()
        try:
            arguments = (slot.next_call(), envelope.head(message_id), payload, self._window_ms)
            open_keys = () if marker is None else (marker,)
            reply = await calls.call(slot.publish, arguments, open_keys=open_keys)
        finally:
            calls.give_back(slot)  # see below
        return _ACCEPTED if reply == 1 else _SUPPRESSED

    async def publish(
        self,
        ids: Sequence[bytes],
        messages: Sequence[Outgoing],
        stopped: Callable[[], bool],
        patience: float | None = None,
    ) -> Published:
        """Put a chunk into the lines; at a limit raise, wait or drop, as the queue says."""
        calls, confirms = self._calls, self._confirmer.wanted
        if confirms:
            await self._confirmer.refuse_if_impossible()
        await calls.open_journal()
        slot = calls.borrow()
        sent: Sent | None = None
        try:
            command, open_keys, arguments = self._call(slot, ids, messages)
            if self._blocks:
                number, reply = await self._wait_for_room(slot, open_keys, arguments, stopped, patience)
            else:
                number = slot.next_call()
                reply = await calls.call(command, (number, *arguments), open_keys=open_keys)
            if confirms and reply != FULL:
                sent = Sent(slot, command, (number, *arguments), open_keys, calls.port.now(), calls)
                sent.ids, sent.payloads, sent.answer = list(ids), [one.payload for one in messages], reply
                reply = await self._confirmer.confirm(sent)
        finally:
            # Also after an unknown outcome: a higher number on the same slot shuts out a straggler. Only a publish
            # that may be repeated keeps it.
            if sent is None or sent.settled:
                calls.give_back(slot)
        return self._published(reply, ids, patience)

    def _call(
        self, slot: Slot, ids: Sequence[bytes], messages: Sequence[Outgoing]
    ) -> tuple[Any, tuple[str, ...], tuple[Argument, ...]]:
        """The script that can do it, its markers, and its arguments after the number."""
        bare = all(one.is_bare for one in messages)
        markers = tuple(dict.fromkeys(one.marker for one in messages if one.marker is not None))
        if bare and len(messages) == 1 and not self._limited:
            return slot.publish, markers, (envelope.head(ids[0]), messages[0].payload, self._window_ms)
        base = ids[0][: envelope.BASE_BYTES]
        if bare and not markers:
            return slot.enqueue, (), (base, "bare", *(one.payload for one in messages))
        places = {marker: place for place, marker in enumerate(markers, 1)}
        details = (
            part
            for one in messages
            for part in (
                one.due,
                0 if one.marker is None else places[one.marker],
                envelope.body(one.payload, one.tenant, one.extras),
            )
        )
        return slot.enqueue, markers, (base, "full", *details)

    def repeat(
        self, error: PublishNotConfirmedError, payloads: list[bytes]
    ) -> tuple[list[bytes], Coroutine[Any, Any, Published]]:
        """Make a publish that was not confirmed once more: the same call, so it counts once."""
        sent = self._confirmer.repeatable(error, payloads)
        return sent.ids, self._repeat(sent)

    async def _repeat(self, sent: Sent) -> Published:
        self._confirmer.begin(sent)
        try:
            reply = await self._confirmer.confirm(sent)
        finally:
            sent.repeating = False
        self._calls.give_back(sent.slot)
        published = self._published(reply, sent.ids)
        return replace(published, dropped=sent.news())

    def _published(self, reply: Any, ids: Sequence[bytes], patience: float | None = None) -> Published:
        if isinstance(reply, int):
            return Published([reply == 1])
        if reply == FULL:
            raise self._full(ids, patience)
        return Published([mark == 49 for mark in reply[: len(ids)]], dropped_ids(reply[len(ids) :]))

    async def _wait_for_room(
        self,
        slot: Slot,
        open_keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        stopped: Callable[[], bool],
        patience: float | None,
    ) -> tuple[bytes, Any]:
        """Ask again, 10 to 100 ms apart, until there is room, time is up or somebody stops us."""
        port = self._calls.port
        if patience is None:
            patience = self._options.pending_overload_block_timeout_seconds
        started, pause = port.now(), 0.01
        waits: Callable[[], bool] | None = None  # whoever stops us ends the waiting, not the first try
        while True:
            left = patience - (port.now() - started)
            number = slot.next_call()
            reply = await self._calls.call(
                slot.enqueue, (number, *arguments), open_keys=open_keys, budget=max(left, 0), stopped=waits
            )
            waits = stopped
            left = patience - (port.now() - started)
            if reply != FULL or left <= 0 or stopped():
                return number, reply
            await port.sleep(min(pause, left))
            pause = min(0.1, pause * 1.5)

    def _full(self, ids: Sequence[bytes], patience: float | None) -> QueueBackpressureError:
        options = self._options
        patience = options.pending_overload_block_timeout_seconds if patience is None else patience
        waited = f" for {patience:g} s" if self._blocks else ""
        limits = [
            f"{name} is {getattr(options, name)}"
            for name in ("max_pending_length", "max_pending_per_tenant")
            if getattr(options, name) is not None
        ]
        return QueueBackpressureError(
            f"the queue is full{waited}: {' and '.join(limits)}; {NOTHING_PUBLISHED}, try again "
            "when consumers have caught up",
            message_id=ids[0].hex(),
            operation="publish",
        )


def chunks(messages: Sequence[Outgoing], options: GatewayOptions) -> Iterator[Sequence[Outgoing]]:
    """Pieces that one script can take: all or nothing each, and never larger than a limit of the queue."""
    most = min(options.max_pending_length or _CHUNK_MESSAGES, _CHUNK_MESSAGES)
    most = min(options.max_pending_per_tenant or most, most)
    start = size = 0
    for place, one in enumerate(messages):
        weight = len(one.payload) + len(one.extras)
        if place > start and (place - start == most or size + weight > _CHUNK_BYTES):
            yield messages[start:place]
            start, size = place, 0
        size += weight
    if start < len(messages):
        yield messages[start:]


def chunk_ids(fresh: bytes, count: int) -> list[bytes]:
    """The ids of a chunk, as the script makes them from what they begin with."""
    base = fresh[: envelope.BASE_BYTES]
    return [base + place.to_bytes(2, "big") for place in range(1, count + 1)]
