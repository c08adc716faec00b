"""Builds outgoing messages from what the user publishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.protocol.publish.sender import OutgoingMessage
from redis_message_queue.stored import headers
from redis_message_queue.stored.codecs import Codec, codec_for, encode_with
from redis_message_queue.stored.envelope import content_key, payload_key, tenant_name
from redis_message_queue.values.checks import MILLISECOND, number, text
from redis_message_queue.values.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    PayloadTypeError,
    PayloadValueError,
)
from redis_message_queue.values.plain_values import class_name, is_text, plain

if TYPE_CHECKING:
    from redis_message_queue.protocol.store import Store

Message = Any
"""A str or a dict, or what the codec of the queue encodes."""


@dataclass(slots=True)
class PublishOverrides:
    """What one publish says of its messages, beside the options of the queue."""

    tenant: Any = None
    delay_seconds: Any = None
    at: Any = None
    headers: Any = None
    deduplication_key: Any = None
    ttl_seconds: Any = None
    partition_key: Any = None
    repeat_of: Any = None
    timeout_seconds: Any = None
    called_at: float = 0.0  # the time limit runs from here

    @property
    def limit(self) -> float | None:
        """When the last attempt must end, by the port's clock."""
        return None if self.timeout_seconds is None else self.called_at + float(plain(self.timeout_seconds))


class MessageBuilder:
    """Checks and encodes messages, and adds their deduplication keys, headers and due times."""

    def __init__(self, options: QueueOptions, store: Store) -> None:
        self._store = store
        self._port = store.port
        self._rules = options.payload_rules
        self.codec = codec = codec_for(options.codec)
        self.encode: Callable[[Any], bytes] = self._rules.encode if codec is None else partial(self._encode_by, codec)
        self._deduplicates = options.deduplication
        self._get_key = options.get_deduplication_key
        self._get_headers = options.get_headers
        # Whether a message without a tenant or a delay is its payload and nothing else.
        self.is_plain = not (self._deduplicates or self._get_headers is not None)

    def _encode_by(self, codec: Codec[Any], message: Any) -> bytes:
        return self._rules.checked_size(encode_with(codec, message))

    def build_plain(self, message: Message) -> OutgoingMessage:
        """Return a message that is only a payload, ready to send."""
        return OutgoingMessage(self.encode(message))

    async def build(self, message: Message, overrides: PublishOverrides | None, part: int = 0) -> OutgoingMessage:
        """Return the message, ready to be sent once it is marked for its part; if that is known, its clock counts."""
        outgoing = OutgoingMessage(b"")
        if overrides is None:
            outgoing.payload = self.encode(message)
        else:
            ttl = self._checked(overrides)
            if overrides.delay_seconds is not None or overrides.at is not None:
                outgoing.due = await self._due(overrides, ttl, part)
            outgoing.payload = self.encode(message)
            if overrides.tenant is not None:
                outgoing.tenant = tenant_name(overrides.tenant)
            outgoing.ttl_us = _microseconds(ttl)
            if overrides.deduplication_key is not None:
                outgoing.key = plain(overrides.deduplication_key)
        if self._deduplicates and outgoing.key is None:
            outgoing.key = await self.deduplication_key(message, outgoing.payload)
        if self._get_headers is not None or overrides is not None:
            outgoing.extras = await self._headers(overrides)
        return outgoing

    def _checked(self, overrides: PublishOverrides) -> float | None:
        """Raise for what cannot be used, before any function of the user's is called. Returns the time to live."""
        capabilities, key = self._store.capabilities, overrides.deduplication_key
        if overrides.headers is not None:
            capabilities.require("headers")
            headers.encode(overrides.headers, "headers")
        if overrides.ttl_seconds is not None:
            capabilities.require("chunks")
            number("ttl_seconds", overrides.ttl_seconds, least=MILLISECOND)
        if overrides.partition_key is not None:
            text("partition_key", overrides.partition_key)
        if overrides.timeout_seconds is not None:
            capabilities.require("time_limits")
            number("timeout_seconds", overrides.timeout_seconds, least=MILLISECOND)
        if key is not None:
            text("deduplication_key", key)
            if self._store.options.pending_overload_policy == "drop_oldest":
                raise ConfigurationError(
                    "deduplication_key cannot be combined with pending_overload_policy='drop_oldest': the key of a "
                    "dropped message would remain and suppress the same message when it is published again"
                )
        return None if overrides.ttl_seconds is None else float(plain(overrides.ttl_seconds))

    async def build_all(
        self, messages: Sequence[Message], overrides: PublishOverrides, repeated: int, part: int = 0
    ) -> list[OutgoingMessage]:
        """Return the messages, as `build` does; the first ``repeated`` of them go out as they did before.

        No function of the user's is called before all messages have been checked.
        """
        ttl, tenant = self._checked(overrides), overrides.tenant
        due = await self._due(overrides, ttl, part)
        name = b"" if tenant is None else tenant_name(tenant)
        encode, ttl_us = self.encode, _microseconds(ttl)
        outgoing = [OutgoingMessage(encode(one), None, name, due, ttl_us=ttl_us) for one in messages]
        new = outgoing[repeated:]
        if overrides.deduplication_key is not None:
            (only,) = outgoing  # `publish_many` takes no key
            only.key = plain(overrides.deduplication_key)
        elif self._deduplicates:
            for one, message in zip(new, messages[repeated:], strict=True):
                one.key = await self.deduplication_key(message, one.payload)
        if new:
            extras = await self._headers(overrides)
            for one in new:
                one.extras = extras
        return outgoing

    async def deduplication_key(self, message: Message, payload: bytes) -> str:
        """Return what makes this message a duplicate of another one, of the same tenant."""
        if self._get_key is None:
            return content_key(message) if self.codec is None else payload_key(payload)
        answer = await self._port.call_user(self._get_key, message)
        key: str = answer.unwrap()
        if type(key) is not str or not key:
            key = self._checked_key(plain(key))
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise PayloadValueError(
                f"get_deduplication_key returned a lone surrogate at position {error.start}, which UTF-8 cannot encode",
            ) from None
        return key

    @staticmethod
    def _checked_key(key: Any) -> str:
        """Return the key, or raise if it names no message."""
        if key is None or (is_text(key) and key == ""):
            raise ConfigurationError(
                f"get_deduplication_key returned {key!r}; return a non-empty str that names this message, "
                "or every message without one would count as a duplicate of the others",
            )
        if not is_text(key):
            raise PayloadTypeError(
                f"get_deduplication_key must return a str, not {class_name(key)}; format it first",
            )
        return key

    async def _headers(self, overrides: PublishOverrides | None) -> bytes:
        """Return the extras: what ``get_headers`` returns, and the headers of this call, which win."""
        own = None if overrides is None else overrides.headers
        if self._get_headers is None:
            return b"" if own is None else headers.encode(own, "headers")
        answer = (await self._port.call_user(self._get_headers)).unwrap()
        extras = headers.encode(answer)
        return extras if own is None else headers.encode({**answer, **own}, "headers")

    async def _due(self, overrides: PublishOverrides, ttl: float | None, part: int) -> str:
        """Return when messages may be delivered; raise if they would be too old to be delivered by then."""
        delay_seconds, at = overrides.delay_seconds, overrides.at
        when, max_age = due_time(delay_seconds, at), self._store.options.message_ttl_seconds
        option = "message_ttl_seconds"
        if ttl is not None and (max_age is None or ttl < max_age):
            option, max_age = "ttl_seconds", ttl
        if max_age is None or not when:
            return when
        if delay_seconds is not None:
            given, wait = f"delay_seconds={delay_seconds:g}", float(delay_seconds)
        else:
            given, wait = f"at={at}", int(when) / 1_000_000 - await self._server_time(part, overrides)
        if wait >= max_age:
            raise ConfigurationError(
                f"{given} is not earlier than {option}={max_age:g} allows: the message would be too old "
                "when its time comes, and go to the dead letters instead of a handler; shorten the delay, or raise "
                f"{option}. Nothing was published"
            )
        return when

    async def _server_time(self, part: int, overrides: PublishOverrides) -> float:
        """Return the seconds since 1970 by the clock that counts the age of messages."""
        calls = self._store.parts[part].calls
        ((seconds, microseconds),) = await calls.pipeline(calls.keys.pending, (("TIME",),), "publish", overrides.limit)
        return int(seconds) + int(microseconds) / 1_000_000


def _microseconds(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, int(seconds * 1_000_000))


def due_time(delay_seconds: float | None, at: datetime | None) -> str:
    """Return when a message may be delivered, as the scripts read it."""
    if delay_seconds is not None and at is not None:
        raise ConfigurationError("give delay_seconds or at, and only one of them")
    if delay_seconds is not None:
        number("delay_seconds", delay_seconds, least=0)
        return f"+{int(delay_seconds * 1_000_000)}"
    if at is None:
        return ""
    if not isinstance(at, datetime):
        raise ConfigurationTypeError(f"at must be a datetime, not {type(at).__name__}")
    try:
        is_naive = at.tzinfo is None or at.utcoffset() is None
    except Exception as error:
        raise ConfigurationError(f"at has a time zone that fails: {class_name(error)}") from error
    if is_naive:
        raise ConfigurationError(
            "at has no time zone, and the server may be in another one; use an aware one, such as datetime.now(UTC)"
        )
    return str(max(0, int(at.timestamp() * 1_000_000)))
