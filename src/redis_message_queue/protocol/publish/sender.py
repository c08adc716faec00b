"""Sends outgoing messages to Redis: all of a chunk in one script, or none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.calls import Calls, ReplySlot
from redis_message_queue.protocol.port import Argument, Call, Command, split
from redis_message_queue.protocol.publish.confirm import FULL, Confirmer, Sent, dropped_ids
from redis_message_queue.stored import envelope
from redis_message_queue.stored.bounds import MAX_BYTES, MAX_MESSAGES
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import PublishNotConfirmedError, QueueBackpressureError

if TYPE_CHECKING:
    from redis_message_queue.protocol.group_commit import GroupCommit

NOTHING_PUBLISHED = "nothing was published"  # `publish_many` replaces it by what was
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.1  # between two attempts to get into a full queue


@dataclass(slots=True, eq=False)
class OutgoingMessage:
    """A message that is ready to be sent."""

    payload: bytes
    marker: str | None = None  # the Redis key that remembers its deduplication key, in the part that it goes to
    tenant: bytes = b""
    due: str = ""  # microseconds of the server's clock, '+' and microseconds from now, or '' for immediately
    extras: bytes = b""  # its headers
    ttl_us: int = 0  # how long it may wait, 0 for any time
    key: str | None = None  # its deduplication key

    @property
    def is_bare(self) -> bool:
        """Whether it is nothing but a payload, to be delivered as soon as possible."""
        return not (self.tenant or self.due or self.extras or self.ttl_us)

    def mark(self, keys: QueueKeys) -> None:
        """Set the marker: where its deduplication key is remembered in the part with these keys."""
        if self.key is not None:
            self.marker = keys.deduplication(self.key, self.tenant.decode() if self.tenant else None)


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome for a chunk: which messages were accepted, and which older ones were dropped to make room."""

    accepted: list[bool]  # False: suppressed as a duplicate
    dropped: tuple[str, ...] = ()
    ids: list[bytes] | None = None  # where they are not the caller's


ACCEPTED, SUPPRESSED = Published([True]), Published([False])


class Sender:
    """Sends chunks of messages under the queue's overload policy, and waits for their confirmation."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._options = options = calls.options
        self.is_limited = bool(options.max_pending_length or options.max_pending_per_tenant)
        self._blocks = self.is_limited and options.pending_overload_policy == "block"
        self._window_ms = max(1, int(options.message_deduplication_log_ttl_seconds * 1000))
        self._confirmer = Confirmer(calls)
        self.group: GroupCommit | None = None  # what lets publishes share requests, if they do
        # This sender, if one script does it: nobody waits for room or for a confirmation.
        self.direct = None if self._blocks or self._confirmer.wanted else self

    @property
    def keys(self) -> QueueKeys:
        """The keys of the part that it sends to."""
        return self.calls.keys

    def choose_for_one(self, slot: ReplySlot, message_id: bytes, one: OutgoingMessage) -> Call:
        """Return the script that can send this message, its extra keys, and its arguments after the call number.

        publish.lua takes one payload and knows no limits; enqueue.lua does everything else.
        """
        if self.is_limited or one.tenant or one.due or one.extras or one.ttl_us:
            return self.choose_enqueue(slot, [message_id], [one])
        if one.marker is None:
            return slot.publish, (), (b"\x80" + message_id, one.payload)
        return slot.publish, (one.marker,), (b"\x80" + message_id, one.payload, self._window_ms)

    def choose_enqueue(
        self,
        slot: ReplySlot,
        ids: Sequence[bytes],
        messages: Sequence[OutgoingMessage],
        *,
        one_by_one: bool = False,
    ) -> Call:
        """Return the call that sends a chunk, in the shortest form that can say everything of its messages.

        With ``one_by_one``, a queue with a limit decides about each message by itself.
        """
        base = ids[0][: envelope.BASE_BYTES]
        markers = tuple([one.marker for one in messages if one.marker is not None])
        form = "each" if one_by_one and self.is_limited else "full"
        are_ready = form == "full" and not [one for one in messages if one.due]
        if are_ready and not markers and not [one for one in messages if one.tenant or one.extras or one.ttl_us]:
            return slot.enqueue, (), (base, "bare", *[one.payload for one in messages])
        if are_ready and len(markers) in (0, len(messages)):
            parts = [
                part
                for one in messages
                for part in (envelope.preamble(one.tenant, one.extras, one.ttl_us), one.payload)
            ]
            return slot.enqueue, markers, (base, "ready", *parts)
        places = {marker: place for place, marker in enumerate(dict.fromkeys(markers), 1)}
        details = (
            part
            for one in messages
            for part in (
                one.due,
                0 if one.marker is None else places[one.marker],
                envelope.body(one.payload, one.tenant, one.extras, one.ttl_us),
            )
        )
        return slot.enqueue, tuple(places), (base, form, *details)

    async def send(
        self,
        ids: Sequence[bytes],
        messages: Sequence[OutgoingMessage],
        stopped: Callable[[], bool],
        wait_seconds: float | None = None,
        limit: float | None = None,
    ) -> Published:
        """Add a chunk to the queue; when the queue is full raise, wait or drop the oldest, as its policy says.

        The last attempt ends at the ``limit``.
        """
        calls = self.calls
        await self._confirmer.refuse_if_impossible(limit)
        await calls.prepare(limit)
        slot = calls.acquire_slot()
        sent: Sent | None = None
        try:
            if len(messages) == 1:
                command, extra_keys, arguments = self.choose_for_one(slot, ids[0], messages[0])
            else:
                command, extra_keys, arguments = self.choose_enqueue(slot, ids, messages)
            if self._blocks:
                number, reply = await self._wait_for_room(
                    slot, command, extra_keys, arguments, stopped, wait_seconds, limit
                )
            else:
                number = slot.next_call()
                reply = await calls.call(command, (number, *arguments), extra_keys=extra_keys, limit=limit)
            if self._confirmer.wanted and reply != FULL:
                sent = Sent(slot, command, (number, *arguments), extra_keys, calls.port.now(), calls)
                sent.ids, sent.payloads, sent.answer = list(ids), [one.payload for one in messages], reply
                reply = await self._confirmer.confirm(sent, limit)
        finally:
            # Also after an unknown outcome: a call with a higher number makes the server refuse a late one. Only a
            # publish that may be repeated keeps its slot.
            if sent is None or sent.settled:
                calls.release_slot(slot)
        return self.read(reply, ids, wait_seconds)

    def find_sent(self, error: PublishNotConfirmedError, payloads: list[bytes]) -> Sent:
        """Return the publish that was not confirmed, if it can be sent again; else raise."""
        return self._confirmer.repeatable(error, payloads)

    async def send_again(self, sent: Sent, limit: float | None = None) -> Published:
        """Send a publish that was not confirmed once more: under its old number, so it counts once."""
        self._confirmer.begin(sent)
        try:
            reply = await self._confirmer.confirm(sent, limit)
        finally:
            sent.repeating = False
        self.calls.release_slot(sent.slot)
        published = self.read(reply, sent.ids)
        return replace(published, dropped=sent.new_dropped())

    def read(self, reply: Any, ids: Sequence[bytes], wait_seconds: float | None = None) -> Published:
        """Return what the script's reply says; raise if the queue was full."""
        if isinstance(reply, int):  # from publish.lua
            return ACCEPTED if reply == 1 else SUPPRESSED
        if reply == FULL:
            raise self.full_queue_error(ids, wait_seconds)
        return Published([mark == 49 for mark in reply[: len(ids)]], dropped_ids(reply[len(ids) :]))

    async def _wait_for_room(
        self,
        slot: ReplySlot,
        command: Command,
        extra_keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        stopped: Callable[[], bool],
        wait_seconds: float | None,
        limit: float | None,
    ) -> tuple[bytes, Any]:
        """Call until there is room, the time is up or the queue object is stopped; return the last number and reply."""
        port = self.calls.port
        if wait_seconds is None:
            wait_seconds = self._options.pending_overload_block_timeout_seconds
        deadline, pause = port.now() + wait_seconds, _FIRST_PAUSE_SECONDS
        stops: Callable[[], bool] | None = None  # being stopped ends the waiting, not the first call
        while True:
            number = slot.next_call()
            reply = await self.calls.call(
                command,
                (number, *arguments),
                extra_keys=extra_keys,
                budget=max(deadline - port.now(), 0),
                limit=limit,
                stopped=stops,
            )
            stops, left = stopped, deadline - port.now()
            if reply != FULL or left <= 0 or stopped():
                return number, reply
            await port.sleep(min(pause, left))
            pause = min(_LONGEST_PAUSE_SECONDS, pause * 1.5)

    def full_queue_error(self, ids: Sequence[bytes], wait_seconds: float | None = None) -> QueueBackpressureError:
        """Return the error of a publish that the queue has no room for."""
        options = self._options
        seconds = options.pending_overload_block_timeout_seconds if wait_seconds is None else wait_seconds
        waited = f" for {seconds:g} s" if self._blocks else ""
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


def chunks(messages: Sequence[OutgoingMessage], options: GatewayOptions) -> Iterator[Sequence[OutgoingMessage]]:
    """Yield pieces that one script can take, none of them larger than a limit of the queue."""
    most = min(options.max_pending_length or MAX_MESSAGES, MAX_MESSAGES)
    most = min(options.max_pending_per_tenant or most, most)
    sizes = [len(one.payload) + len(one.extras) for one in messages]
    return split(messages, sizes, most, MAX_BYTES)


def _places(count: int) -> list[bytes]:
    return [place.to_bytes(2, "big") for place in range(1, count + 1)]


_PLACES = _places(MAX_MESSAGES)


def first_id(new_id: bytes) -> bytes:
    """Return the id of a message that is sent alone: the first of a chunk, as any script makes it."""
    return new_id[: envelope.BASE_BYTES] + b"\0\1"


def chunk_ids(new_id: bytes, count: int) -> list[bytes]:
    """Return the ids of a chunk, as the scripts make them from the id that they begin with."""
    base = new_id[: envelope.BASE_BYTES]
    return [base + place for place in (_PLACES[:count] if count <= MAX_MESSAGES else _places(count))]
