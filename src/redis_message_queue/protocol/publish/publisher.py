"""Publishes the messages of a queue object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from redis_message_queue.protocol.drain import DrainGate
from redis_message_queue.protocol.event_emitter import EventEmitter
from redis_message_queue.protocol.port import unwrap
from redis_message_queue.protocol.publish.confirm import Sent
from redis_message_queue.protocol.publish.group_commit import PublishCall
from redis_message_queue.protocol.publish.message_builder import Message, MessageBuilder, PerCall
from redis_message_queue.protocol.publish.sender import (
    ACCEPTED,
    NOTHING_PUBLISHED,
    Published,
    chunk_ids,
    chunks,
    first_id,
)
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.stored.envelope import ID_BYTES
from redis_message_queue.values.errors import (
    PayloadTypeError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    RedisMessageQueueError,
)
from redis_message_queue.values.events import EventOperation, EventOutcome
from redis_message_queue.values.messages import Receipt


class SentMessage(NamedTuple):
    """What became of one message of a chunk."""

    id: bytes
    accepted: bool
    marker: str | None  # the Redis key that remembers its deduplication key


class Publishes(Protocol):
    """Publishes messages: `Publisher`, or what chooses a partition for each message."""

    async def publish(
        self,
        message: Message,
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
    ) -> bool: ...

    async def publish_many(
        self,
        messages: Iterable[Message],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
        deadline: float | None = None,
    ) -> list[bool]: ...

    async def submit_many(
        self,
        messages: Iterable[Message],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
        deadline: float | None = None,
    ) -> list[Receipt]: ...

    async def emit_published(self, ids: Sequence[bytes], published: Published, started: float) -> None: ...


class Publisher:
    """Publishes messages, reports what happened as events, and lets a drain wait for it."""

    def __init__(self, store: Store, builder: MessageBuilder, emitter: EventEmitter, gate: DrainGate) -> None:
        self._store = store
        self._port = store.port
        self._builder = builder
        self._emitter = emitter
        self._gate = gate

    async def publish(
        self,
        message: Message,
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
    ) -> bool:
        """Add a message to the queue. Returns True, or False if deduplication suppressed it."""
        gate, store, emitter = self._gate, self._store, self._emitter
        entry, sender, call = gate.enter(), store.sender.direct, PublishCall()
        try:
            if gate.is_shut:
                gate.refuse_if_shut()
            if repeat_of is not None or sender is None:
                (accepted,) = await self._publish_chunks([message], tenant, delay_seconds, at, repeat_of, [], given)
                return accepted
            is_bare = tenant is None and delay_seconds is None and at is None and given is None
            if is_bare and self._builder.is_plain:
                outgoing = self._builder.build_plain(message)
            else:
                outgoing = await self._builder.build(message, tenant, delay_seconds, at, given)
            group, calls, message_id = sender.group, store.calls, first_id(self._port.new_id())
            started = self._port.now() if emitter.wanted else 0.0
            try:
                if not calls.is_prepared:
                    await calls.prepare()
                if group is None or group.begin(call):
                    slot = calls.acquire_slot()
                    try:
                        command, extra_keys, arguments = sender.choose_for_one(slot, message_id, outgoing)
                        reply = await calls.call(command, (slot.next_call(), *arguments), extra_keys=extra_keys)
                    finally:
                        call.is_over = True
                        calls.release_slot(slot)
                        if group is not None:
                            group.end(call)
                    published = ACCEPTED if reply == 1 else sender.read(reply, [message_id])
                else:
                    call = group.new_call(outgoing, message_id, started or self._port.now())
                    published = await group.join(call, sender)
            except Exception as error:
                await self._emit_failure([call.message_id or message_id], error)
                raise
            message_id = call.message_id or message_id
            if emitter.wanted:
                await self.emit_published([message_id], published, started)
            return published.accepted[0]
        except RedisMessageQueueError as error:
            error.locate(self._emitter.queue, "publish")
            raise
        finally:
            call.is_over = True  # also if a Ctrl-C came before the other `finally`
            self._gate.leave(entry)

    async def publish_many(
        self,
        messages: Iterable[Message],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
        deadline: float | None = None,
    ) -> list[bool]:
        """Add messages to the queue in their order. Returns for each what `publish` would return."""
        results: list[bool] = []
        entry = self._gate.enter()
        try:
            self._gate.refuse_if_shut()
            self._store.capabilities.require("chunks")
            return await self._publish_chunks(
                listed(messages), tenant, delay_seconds, at, repeat_of, results, given, deadline=deadline
            )
        except Exception as error:
            with suppress(AttributeError):  # a user's exception may not allow new attributes
                error.results = results  # type: ignore[attr-defined]  # documented for all errors of this call
            if isinstance(error, RedisMessageQueueError):
                error.locate(self._emitter.queue, "publish")
            raise
        finally:
            self._gate.leave(entry)

    async def submit_many(
        self,
        messages: Iterable[Message],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
        deadline: float | None = None,
    ) -> list[Receipt]:
        """Add messages to the queue in their order. Returns a receipt for each."""
        entry, sent, results = self._gate.enter(), list[SentMessage](), list[bool]()
        try:
            self._gate.refuse_if_shut()
            self._store.capabilities.require("receipts")
            await self._publish_chunks(
                *(listed(messages), tenant, delay_seconds, at, repeat_of, results, given),
                sent_messages=sent,
                deadline=deadline,
            )
            holders = await self._holders([one.marker for one in sent if not one.accepted and one.marker is not None])
            return _receipts(sent, holders)
        except Exception as error:
            with suppress(AttributeError):
                error.receipts = _receipts(sent, {})  # type: ignore[attr-defined]  # as `results` of `publish_many`
            if isinstance(error, RedisMessageQueueError):
                error.locate(self._emitter.queue, "publish")
            raise
        finally:
            self._gate.leave(entry)

    async def _holders(self, markers: Sequence[str]) -> dict[str, str | None]:
        """Return the ids of the messages that hold these deduplication keys; None if the window of one has ended."""
        found: dict[str, str | None] = {}
        unique = list(dict.fromkeys(markers))
        for first in range(0, len(unique), MAX_MESSAGES):
            some = unique[first : first + MAX_MESSAGES]
            gets = tuple(("GET", marker) for marker in some)
            answers = await self._store.calls.pipeline(self._store.keys.pending, gets, "submit")
            ids = (answer if isinstance(answer, bytes) and len(answer) == ID_BYTES else None for answer in answers)
            found.update((marker, None if one is None else one.hex()) for marker, one in zip(some, ids, strict=True))
        return found

    async def _publish_chunks(
        self,
        messages: Sequence[Message],
        tenant: str | None,
        delay_seconds: float | None,
        at: datetime | None,
        repeat_of: PublishNotConfirmedError | None,
        results: list[bool],
        given: PerCall | None = None,
        sent_messages: list[SentMessage] | None = None,
        deadline: float | None = None,
    ) -> list[bool]:
        sender, options = self._store.sender, self._store.options
        earlier = getattr(repeat_of, "sent", None)  # `find_sent` refuses anything else
        repeated = len(earlier.payloads) if isinstance(earlier, Sent) else 0
        outgoing = await self._builder.build_all(messages, tenant, delay_seconds, at, repeated, given)
        if deadline is None:
            deadline = self._port.now() + options.pending_overload_block_timeout_seconds
        first = [outgoing[:repeated]] if repeated else []
        for chunk in (*first, *chunks(outgoing[repeated:], options)):
            started = self._port.now()
            if repeat_of is not None:
                sent = sender.find_sent(repeat_of, [one.payload for one in chunk])
                ids, sending, repeat_of = sent.ids, sender.send_again(sent), None
            else:
                ids = chunk_ids(self._port.new_id(), len(chunk))
                sending = sender.send(ids, chunk, self._gate.is_stopped, max(0.0, deadline - started))
            try:
                published = await sending
            except Exception as error:
                if results:
                    _say_how_many(error, results, len(outgoing))
                await self._emit_failure(ids, error)
                raise
            results += published.accepted
            if sent_messages is not None:
                stored = zip(ids, published.accepted, chunk, strict=True)
                sent_messages += [SentMessage(one, accepted, of.marker) for one, accepted, of in stored]
            if self._emitter.wanted:
                await self.emit_published(ids, published, started)
        return results

    async def _emit_failure(self, ids: Sequence[bytes], error: Exception) -> None:
        if not self._emitter.wanted:
            return
        for dropped in error.dropped if isinstance(error, PublishNotConfirmedError) else ():
            await self._emitter.emit(EventOperation.DROPPED, message_id=dropped)
        for message_id in ids:
            await self._emitter.emit(
                EventOperation.PUBLISH, EventOutcome.FAILURE, message_id=message_id.hex(), error=unwrap(error)
            )

    async def emit_published(self, ids: Sequence[bytes], published: Published, started: float) -> None:
        """Emit an event for each message of a chunk, and for each that was dropped to make room."""
        emit = self._emitter.emit
        took = self._port.now() - started
        for dropped in published.dropped:
            await emit(EventOperation.DROPPED, message_id=dropped)
        for message_id, accepted in zip(published.ids or ids, published.accepted, strict=True):
            details: dict[str, Any] = {"message_id": message_id.hex(), "duration_seconds": took}
            if accepted:
                await emit(EventOperation.PUBLISH, **details)
            else:
                await emit(EventOperation.PUBLISH_DEDUP_HIT, EventOutcome.SKIPPED, **details)


def _receipts(sent: Iterable[SentMessage], holders: Mapping[str, str | None]) -> list[Receipt]:
    """Return a receipt for each message, with the message that holds its key if it is a duplicate."""
    return [
        Receipt(
            id=one.id.hex(), accepted=one.accepted, duplicate_of=None if one.accepted else holders.get(one.marker or "")
        )
        for one in sent
    ]


def _say_how_many(error: Exception, results: Sequence[bool], total: int) -> None:
    """Let an error in the middle say which messages need not be published again."""
    done = f"the first {len(results)} of {total} messages were published"
    if not all(results):
        done += f" ({len(results) - sum(results)} of them suppressed as duplicates)"
    if isinstance(error, QueueBackpressureError):
        rest = f"{done}, the others were not: their results are in the error, publish messages[{len(results)}:] again"
        error.args = (str(error).replace(f"{NOTHING_PUBLISHED}, try again", rest),)
    else:
        error.add_note(f"Before this error {done}; their results are in the error.")


def listed(messages: Iterable[Message]) -> list[Message]:
    """Return the messages as a list; raise for a single message, or for something that is not an iterable."""
    if isinstance(messages, str | bytes | dict):
        raise PayloadTypeError(
            f"publish_many takes an iterable of messages, not one {type(messages).__name__}; use publish"
        )
    if not isinstance(messages, Iterable):
        raise PayloadTypeError(f"messages must be an iterable of messages, not {type(messages).__name__}")
    return list(messages)
