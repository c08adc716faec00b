"""Publishes the messages of a queue object."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis_message_queue.protocol.drain import DrainGate
from redis_message_queue.protocol.event_emitter import EventEmitter
from redis_message_queue.protocol.group_commit import SingleCall
from redis_message_queue.protocol.port import unwrap
from redis_message_queue.protocol.publish.confirm import Sent
from redis_message_queue.protocol.publish.message_builder import Message, MessageBuilder, PublishOverrides
from redis_message_queue.protocol.publish.sender import (
    ACCEPTED,
    NOTHING_PUBLISHED,
    OutgoingMessage,
    Published,
    chunk_ids,
    chunks,
    first_id,
)
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.stored.envelope import ID_BYTES, tenant_name
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.values.checks import text
from redis_message_queue.values.errors import (
    PayloadTypeError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    RedisMessageQueueError,
)
from redis_message_queue.values.events import EventOperation, EventOutcome
from redis_message_queue.values.messages import Receipt
from redis_message_queue.values.plain_values import plain


class SentMessage(NamedTuple):
    """What became of one message of a chunk."""

    id: bytes
    accepted: bool
    marker: str | None  # the Redis key that remembers its deduplication key
    part: int


class PartShare(NamedTuple):
    """Messages of one call that go to the same part, by their places in the call."""

    part: int
    places: Sequence[int]


class Chunk(NamedTuple):
    """Messages of a share that are sent in one script."""

    places: Sequence[int]
    messages: Sequence[OutgoingMessage]


class Publisher:
    """Publishes messages, reports what happened as events, and lets a drain wait for it.

    The partition key of a message decides on its part; else its tenant, else its deduplication key. Messages without
    any take turns.
    """

    def __init__(self, store: Store, builder: MessageBuilder, emitter: EventEmitter, gate: DrainGate) -> None:
        self._store = store
        self._senders = store.senders
        self._port = store.port
        self._builder = builder
        self._emitter = emitter
        self._gate = gate
        self._has_one_part = len(self._senders) == 1
        self._turn = 0 if self._has_one_part else int(self._port.random() * len(self._senders))

    def _next_turn(self) -> int:
        self._turn = turn = (self._turn + 1) % len(self._senders)
        return turn

    def _part_of_call(self, overrides: PublishOverrides | None) -> int | None:
        """Return the part that the arguments decide on; None if each message decides for itself."""
        if self._has_one_part:
            return 0
        if overrides is None:
            return None
        if overrides.partition_key is not None:
            text("partition_key", overrides.partition_key)
            key = plain(overrides.partition_key)
        elif overrides.tenant is not None:
            key = tenant_name(overrides.tenant).decode()
        elif overrides.deduplication_key is not None:
            text("deduplication_key", overrides.deduplication_key)
            key = plain(overrides.deduplication_key)
        else:
            return None
        return partition_of(key, len(self._senders))

    def _part_of(self, outgoing: OutgoingMessage) -> int:
        """Return the part of a message that decides for itself."""
        return self._next_turn() if outgoing.key is None else partition_of(outgoing.key, len(self._senders))

    async def publish(self, message: Message, overrides: PublishOverrides | None = None) -> bool:
        """Add a message to the queue. Returns True, or False if deduplication suppressed it."""
        gate, emitter = self._gate, self._emitter
        entry, call = gate.enter(), SingleCall()
        try:
            if gate.is_shut:
                gate.refuse_if_shut()
            part = 0 if self._has_one_part else self._part_of_call(overrides)
            if self._senders[0].direct is None or (overrides is not None and overrides.repeat_of is not None):
                (accepted,) = await self._publish_all([message], overrides or PublishOverrides(), [])
                return accepted
            if overrides is None and self._builder.is_plain:
                outgoing = self._builder.build_plain(message)
            else:
                outgoing = await self._builder.build(message, overrides, part or 0)
            sender = self._senders[self._part_of(outgoing) if part is None else part].direct
            assert sender is not None
            group, calls, message_id = sender.group, sender.calls, first_id(self._port.new_id())
            if outgoing.key is not None:
                outgoing.mark(sender.keys)
            started = self._port.now() if emitter.wanted else 0.0
            limit = None if overrides is None else overrides.limit
            try:
                if not calls.is_prepared:
                    await calls.prepare(limit)
                if group is None or group.begin(call):
                    slot = calls.acquire_slot()
                    try:
                        command, extra_keys, arguments = sender.choose_for_one(slot, message_id, outgoing)
                        numbered = (slot.next_call(), *arguments)
                        reply = await calls.call(command, numbered, extra_keys=extra_keys, limit=limit)
                    finally:
                        call.is_over = True
                        calls.release_slot(slot)
                        if group is not None:
                            group.end(call)
                    published = ACCEPTED if reply == 1 else sender.read(reply, [message_id])
                else:
                    call = group.new_call(outgoing, message_id, started or self._port.now(), limit)
                    published = await group.join(call)
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

    async def publish_many(self, messages: Iterable[Message], overrides: PublishOverrides) -> list[bool]:
        """Add messages to the queue in their order. Returns for each what `publish` would return."""
        results: list[bool] = []
        entry = self._gate.enter()
        try:
            self._gate.refuse_if_shut()
            self._store.capabilities.require("chunks")
            return await self._publish_all(listed(messages), overrides, results)
        except Exception as error:
            with suppress(AttributeError):  # a user's exception may not allow new attributes
                error.results = results  # type: ignore[attr-defined]  # documented for all errors of this call
            if isinstance(error, RedisMessageQueueError):
                error.locate(self._emitter.queue, "publish")
            raise
        finally:
            self._gate.leave(entry)

    async def submit_many(self, messages: Iterable[Message], overrides: PublishOverrides) -> list[Receipt]:
        """Add messages to the queue in their order. Returns a receipt for each."""
        entry, sent, results = self._gate.enter(), dict[int, SentMessage](), list[bool]()
        try:
            self._gate.refuse_if_shut()
            self._store.capabilities.require("receipts")
            await self._publish_all(listed(messages), overrides, results, sent)
            receipts = [sent[place] for place in range(len(sent))]
            return _receipts(receipts, await self._holders(receipts, overrides.limit))
        except Exception as error:
            with suppress(AttributeError):
                receipts = [sent[place] for place in range(len(results))]
                error.receipts = _receipts(receipts, {})  # type: ignore[attr-defined]  # as `results` of `publish_many`
            if isinstance(error, RedisMessageQueueError):
                error.locate(self._emitter.queue, "publish")
            raise
        finally:
            self._gate.leave(entry)

    async def _holders(self, sent: Sequence[SentMessage], limit: float | None) -> dict[str, str | None]:
        """Return the ids of the messages that hold the keys of duplicates; None if the window of one has ended."""
        found: dict[str, str | None] = {}
        markers: dict[int, dict[str, None]] = {}
        for one in sent:
            if not one.accepted and one.marker is not None:
                markers.setdefault(one.part, {})[one.marker] = None
        for part, unique in markers.items():
            calls = self._store.parts[part].calls
            for first in range(0, len(unique), MAX_MESSAGES):
                some = list(unique)[first : first + MAX_MESSAGES]
                gets = tuple(("GET", marker) for marker in some)
                answers = await calls.pipeline(calls.keys.pending, gets, "submit", limit)
                for marker, answer in zip(some, answers, strict=True):
                    found[marker] = answer.hex() if isinstance(answer, bytes) and len(answer) == ID_BYTES else None
        return found

    async def _publish_all(
        self,
        messages: Sequence[Message],
        overrides: PublishOverrides,
        results: list[bool],
        sent: dict[int, SentMessage] | None = None,
    ) -> list[bool]:
        """Publish each share in its part, in chunks. Returns the results in the order of the messages.

        After an error, ``results`` has those that need not be published again: the first ones, without a gap.
        """
        part, total, repeat_of = self._part_of_call(overrides), len(messages), overrides.repeat_of
        earlier = getattr(repeat_of, "sent", None)  # `find_sent` refuses anything else
        repeated = 0 if repeat_of is None else len(earlier.payloads) if isinstance(earlier, Sent) else 1
        outgoing = await self._builder.build_all(messages, overrides, repeated, part or 0)
        deadline = self._port.now() + self._store.options.pending_overload_block_timeout_seconds
        if (limit := overrides.limit) is not None:
            deadline = min(deadline, limit)
        later: dict[int, bool] = {}  # results with gaps between them
        for share in self._shares(outgoing, part, earlier, repeated):
            for chunk in self._chunks(share, outgoing, is_repeated=repeat_of is not None):
                ids, started, sending = self._begin(share.part, chunk.messages, repeat_of, deadline, limit)
                try:
                    published = await sending
                except Exception as error:
                    if results:
                        _say_how_many(error, results, total)
                    await self._emit_failure(ids, error)
                    raise
                if isinstance(chunk.places, range):
                    results += published.accepted
                else:
                    later.update(zip(chunk.places, published.accepted, strict=True))
                    if max(later) < len(results) + len(later):  # without a gap
                        results += [later[place] for place in sorted(later)]
                        later.clear()
                if sent is not None:
                    stored = zip(chunk.places, ids, published.accepted, chunk.messages, strict=True)
                    sent.update((at, SentMessage(id, ok, of.marker, share.part)) for at, id, ok, of in stored)
                if self._emitter.wanted:
                    await self.emit_published(ids, published, started)
            repeat_of = None
        return results

    def _begin(
        self,
        part: int,
        messages: Sequence[OutgoingMessage],
        repeat_of: PublishNotConfirmedError | None,
        deadline: float,
        limit: float | None,
    ) -> tuple[Sequence[bytes], float, Awaitable[Published]]:
        """Return the ids of a chunk, the time, and what sends it: for the first time, or once more."""
        sender, now = self._senders[part], self._port.now()
        if repeat_of is not None:
            sent = sender.find_sent(repeat_of, [one.payload for one in messages])
            return sent.ids, now, sender.send_again(sent, limit)
        ids = chunk_ids(self._port.new_id(), len(messages))
        return ids, now, sender.send(ids, messages, self._gate.is_stopped, max(0.0, deadline - now), limit)

    def _shares(
        self, outgoing: Sequence[OutgoingMessage], part: int | None, earlier: Any, repeated: int
    ) -> Iterator[PartShare]:
        """Yield the messages by the parts that they go to; first those that were sent before, to where they were."""
        first, total = min(repeated, len(outgoing)), len(outgoing)
        if first:
            parts = () if self._has_one_part else self._store.parts
            there = (at for at, one in enumerate(parts) if isinstance(earlier, Sent) and earlier.owner is one.calls)
            yield PartShare(next(there, 0), range(first))
        if part is not None:
            yield PartShare(part, range(first, total))
            return
        for start in range(first, total, MAX_MESSAGES):
            places = range(start, min(start + MAX_MESSAGES, total))
            if outgoing[start].key is None:  # as all of them
                yield PartShare(self._next_turn(), places)
            else:
                yield from self._by_key(places, outgoing)

    def _by_key(self, places: range, outgoing: Sequence[OutgoingMessage]) -> Iterator[PartShare]:
        """Group messages by the parts of their keys.

        If a later group fails, the earlier ones are published again as duplicates. Only a publish that must be
        confirmed cannot be repeated so: then a share is a run of neighbours.
        """
        options, part_of = self._store.options, {place: self._part_of(outgoing[place]) for place in places}
        if options.confirm_replicas is not None or options.confirm_fsync:
            for part, run in itertools.groupby(places, part_of.__getitem__):
                first, *others = run
                yield PartShare(part, range(first, first + 1 + len(others)))
            return
        groups: dict[int, list[int]] = {}
        for place, part in part_of.items():
            groups.setdefault(part, []).append(place)
        for part, some in groups.items():
            yield PartShare(part, some)

    def _chunks(self, share: PartShare, outgoing: Sequence[OutgoingMessage], *, is_repeated: bool) -> Iterator[Chunk]:
        """Yield pieces of a share that one script can take; what is repeated is one piece, as it was."""
        places, keys = share.places, self._senders[share.part].keys
        if isinstance(places, range):
            messages = outgoing[places.start : places.stop]
        else:
            messages = [outgoing[place] for place in places]
        if messages and messages[0].key is not None:
            for one in messages:
                one.mark(keys)
        done = 0
        for some in [messages] if is_repeated else chunks(messages, self._store.options):
            yield Chunk(places[done : done + len(some)], some)
            done += len(some)

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
