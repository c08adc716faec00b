"""How a queue publishes: the user's message checked, encoded, marked against repetition, sent, and told of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from redis_message_queue import headers
from redis_message_queue.checks import number
from redis_message_queue.envelope import content_key, tenant_name
from redis_message_queue.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    PayloadTypeError,
    PayloadValueError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    RedisMessageQueueError,
)
from redis_message_queue.events import EventOperation, EventOutcome
from redis_message_queue.options import QueueOptions
from redis_message_queue.protocol.confirm import Sent
from redis_message_queue.protocol.drain import Gate
from redis_message_queue.protocol.port import uncarried
from redis_message_queue.protocol.publish import NOTHING_PUBLISHED, Outgoing, Published, chunk_ids, chunks
from redis_message_queue.protocol.store import Store
from redis_message_queue.protocol.tell import Teller

Message = str | dict[str, Any]


class Outbox:
    """The publishing side of a queue object."""

    def __init__(self, options: QueueOptions, store: Store, teller: Teller, gate: Gate) -> None:
        self._options = options
        self._store = store
        self._port = store.port
        self._teller = teller
        self._gate = gate
        self._rules = options.payload_rules
        self._is_bare = options.get_headers is None  # a payload alone takes the shortest way

    async def publish(
        self,
        message: Message,
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
    ) -> bool:
        """Put a message into its line; False if it was suppressed as a duplicate."""
        entry = self._gate.enter()
        try:
            self._gate.refuse_if_shut()
            if tenant is None and delay_seconds is None and at is None and repeat_of is None and self._is_bare:
                return await self._publish_one(message)
            (accepted,) = await self._publish_many([message], tenant, await self._due(delay_seconds, at), repeat_of, [])
            return accepted
        except RedisMessageQueueError as error:
            error.locate(self._options.name, "publish")
            raise
        finally:
            self._gate.leave(entry)

    async def publish_many(
        self,
        messages: Iterable[Message],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
    ) -> list[bool]:
        """Put messages into their line, in their order; for each whether it is there or was a duplicate."""
        results: list[bool] = []
        entry = self._gate.enter()
        try:
            self._gate.refuse_if_shut()
            waiting, when = listed(messages), await self._due(delay_seconds, at)
            return await self._publish_many(waiting, tenant, when, repeat_of, results)
        except Exception as error:
            with suppress(AttributeError):  # an exception of somebody else's may have no room for it
                error.results = results  # type: ignore[attr-defined]  # documented for all errors of this call
            if isinstance(error, RedisMessageQueueError):
                error.locate(self._options.name, "publish")
            raise
        finally:
            self._gate.leave(entry)

    async def _publish_one(self, message: Message) -> bool:
        payload = self._rules.encode(message)
        marker = await self.marker_of(message) if self._options.deduplication else None
        (message_id,) = chunk_ids(self._port.fresh_id(), 1)
        started = self._port.now() if self._teller.wanted else 0.0
        try:
            published = await self._store.publisher.publish_one(message_id, payload, marker, self._gate.is_stopped)
        except Exception as error:
            await self._tell_failure([message_id], error)
            raise
        if self._teller.wanted:
            await self.tell_published([published.message_id or message_id], published, started)
        return published.accepted[0]

    async def _publish_many(
        self,
        messages: Sequence[Message],
        tenant: str | None,
        due: str,
        repeat_of: PublishNotConfirmedError | None,
        results: list[bool],
    ) -> list[bool]:
        publisher = self._store.publisher
        name = b"" if tenant is None else tenant_name(tenant)
        outgoing = [Outgoing(self._rules.encode(one), tenant=name, due=due) for one in messages]
        if self._options.deduplication and (repeat_of is None or len(messages) > 1):  # a repetition has its marker
            for one, message in zip(outgoing, messages, strict=True):
                one.marker = await self.marker_of(message, tenant)
        # What is repeated goes out as it did then, with the headers that it had.
        repeated = 0 if repeat_of is None else _repeated(repeat_of)
        if not self._is_bare and len(outgoing) > repeated:
            extras = await self._extras()
            for one in outgoing[repeated:]:
                one.extras = extras
        deadline = self._port.now() + self._store.options.pending_overload_block_timeout_seconds
        first = [outgoing[:repeated]] if repeated else []
        for chunk in (*first, *chunks(outgoing[repeated:], self._store.options)):
            started = self._port.now()
            if repeat_of is not None:
                ids, publishing = publisher.repeat(repeat_of, [one.payload for one in chunk])
                repeat_of = None
            else:
                ids = chunk_ids(self._port.fresh_id(), len(chunk))
                publishing = publisher.publish(ids, chunk, self._gate.is_stopped, max(0.0, deadline - started))
            try:
                published = await publishing
            except Exception as error:
                if results:
                    _say_how_many(error, results, len(outgoing))
                await self._tell_failure(ids, error)
                raise
            results += published.accepted
            if self._teller.wanted:
                await self.tell_published(ids, published, started)
        return results

    async def outgoing(
        self,
        message: Message,
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
    ) -> Outgoing:
        """A message checked, encoded and marked, ready to be sent."""
        payload = self._rules.encode(message)
        marker = await self.marker_of(message, tenant) if self._options.deduplication else None
        name, when = b"" if tenant is None else tenant_name(tenant), await self._due(delay_seconds, at)
        return Outgoing(payload, marker, name, when, await self._extras())

    async def _due(self, delay_seconds: float | None, at: datetime | None) -> str:
        """When messages may be delivered; raises for a time at which they would be too old to be delivered."""
        when, life = due(delay_seconds, at), self._store.options.message_ttl_seconds
        if life is None or not when:
            return when
        if delay_seconds is not None:
            given, wait = f"delay_seconds={delay_seconds:g}", float(delay_seconds)
        else:
            given, wait = f"at={at}", int(when) / 1_000_000 - await self._server_time()
        if wait >= life:
            raise ConfigurationError(
                f"{given} is not earlier than message_ttl_seconds={life:g} allows: the message would be too old when "
                "its time comes, and go to the dead letters instead of a handler; shorten the delay, or raise "
                "message_ttl_seconds. Nothing was published"
            )
        return when

    async def _server_time(self) -> float:
        """Seconds since 1970 by the clock that counts the age of messages."""
        calls = self._store.calls
        assert calls is not None  # a custom gateway has no message_ttl_seconds
        ((seconds, microseconds),) = await calls.converse(self._store.keys.pending, (("TIME",),), "publish")
        return int(seconds) + int(microseconds) / 1_000_000

    async def _extras(self) -> bytes:
        """What the user wants to travel with a message; asked last, when everything else about it is right."""
        function = self._options.get_headers
        if function is None:
            return b""
        answer = await self._port.ask(function)
        return headers.carried(answer.unwrap())

    async def _tell_failure(self, ids: Sequence[bytes], error: Exception) -> None:
        if not self._teller.wanted:
            return
        for dropped in error.dropped if isinstance(error, PublishNotConfirmedError) else ():
            await self._teller.tell(EventOperation.DROPPED, message_id=dropped)
        for message_id in ids:
            await self._teller.tell(
                EventOperation.PUBLISH, EventOutcome.FAILURE, message_id=message_id.hex(), error=uncarried(error)
            )

    async def tell_published(self, ids: Sequence[bytes], published: Published, started: float) -> None:
        tell = self._teller.tell
        took = self._port.now() - started
        for dropped in published.dropped:
            await tell(EventOperation.DROPPED, message_id=dropped)
        for message_id, accepted in zip(ids, published.accepted, strict=True):
            details: dict[str, Any] = {"message_id": message_id.hex(), "duration_seconds": took}
            if accepted:
                await tell(EventOperation.PUBLISH, **details)
            else:
                await tell(EventOperation.PUBLISH_DEDUP_HIT, EventOutcome.SKIPPED, **details)

    async def marker_of(self, message: Message, tenant: str | None = None) -> str:
        """The key under which a repetition of this message is recognised, among those of the same tenant."""
        keys = self._store.keys
        function = self._options.get_deduplication_key
        if function is None:
            return keys.deduplication(content_key(message), tenant)
        answer = await self._port.ask(function, message)
        key = answer.unwrap()
        if key is None or key == "":
            raise ConfigurationError(
                f"get_deduplication_key returned {key!r}; return a non-empty str that names this message, "
                "or every message without one would count as a duplicate of the others",
            )
        if not isinstance(key, str):
            raise PayloadTypeError(
                f"get_deduplication_key must return a str, not {type(key).__name__}; format it first",
            )
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise PayloadValueError(
                f"get_deduplication_key returned a lone surrogate at position {error.start}, which UTF-8 cannot carry",
            ) from None
        return keys.deduplication(key, tenant)


def _say_how_many(error: Exception, results: Sequence[bool], total: int) -> None:
    """An error in the middle says which messages need not be published again."""
    done = f"the first {len(results)} of {total} messages were published"
    if not all(results):
        done += f" ({len(results) - sum(results)} of them suppressed as duplicates)"
    if isinstance(error, QueueBackpressureError):
        rest = f"{done}, the others were not: their results are in the error, publish messages[{len(results)}:] again"
        error.args = (str(error).replace(f"{NOTHING_PUBLISHED}, try again", rest),)
    else:
        error.add_note(f"Before this error {done}; their results are in the error.")


def _repeated(error: PublishNotConfirmedError) -> int:
    """How many messages an earlier publish sent together; what is no such error is refused where it is repeated."""
    sent = getattr(error, "sent", None)
    return len(sent.payloads) if isinstance(sent, Sent) else 0


def listed(messages: Iterable[Message]) -> list[Message]:
    """All of them, or an error for what is one message or none at all."""
    if isinstance(messages, str | bytes | dict):
        raise PayloadTypeError(
            f"publish_many takes an iterable of messages, not one {type(messages).__name__}; use publish"
        )
    if not isinstance(messages, Iterable):
        raise PayloadTypeError(f"messages must be an iterable of messages, not {type(messages).__name__}")
    return list(messages)


def due(delay_seconds: float | None, at: datetime | None) -> str:
    """When a message may be delivered, as the scripts read it."""
    if delay_seconds is not None and at is not None:
        raise ConfigurationError("give delay_seconds or at, and only one of them")
    if delay_seconds is not None:
        number("delay_seconds", delay_seconds, least=0)
        return f"+{int(delay_seconds * 1_000_000)}"
    if at is None:
        return ""
    if not isinstance(at, datetime):
        raise ConfigurationTypeError(f"at must be a datetime, not {type(at).__name__}")
    if at.tzinfo is None or at.utcoffset() is None:
        raise ConfigurationError(
            "at has no time zone, and the server may be in another one; use datetime.now(UTC) and the like"
        )
    return str(max(0, int(at.timestamp() * 1_000_000)))
