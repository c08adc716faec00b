"""Codecs: how objects become payloads, and payloads objects again.

A codec is symmetrical: what was published as an object arrives as an equal one. The built-in codecs write canonical
JSON, so that equal objects have equal payloads, and deduplication recognises them. None of them runs code that a
message names, as a pickle would.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)
from uuid import UUID

from redis_message_queue.stored.envelope import canonical_json, check_native
from redis_message_queue.values.checks import is_async_function
from redis_message_queue.values.errors import (
    ConfigurationTypeError,
    MissingExtraError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
)
from redis_message_queue.values.plain_values import brief, described, error_text

__all__ = ["BytesCodec", "Codec", "DataclassCodec", "JsonCodec", "MsgspecCodec", "PydanticCodec"]

T = TypeVar("T")


@runtime_checkable
class Codec(Protocol[T]):
    """What a queue needs to turn its messages into payloads and back. Subclass nothing: two methods are enough."""

    def encode(self, message: T) -> bytes:
        """Return the payload of a message. Equal messages should have equal payloads.

        Raises:
            Exception: The message cannot be encoded; the publisher gets a `PayloadTypeError` or `PayloadValueError`.
        """

    def decode(self, payload: bytes) -> T:
        """Return the message of a payload; not None, which means that there is no message.

        Raises:
            Exception: The payload cannot be decoded; the message goes to the dead letters.
        """


class JsonCodec:
    """Any value that JSON represents exactly: dicts, lists, texts, numbers, True and False.

    Args:
        kind: ``dict`` or ``list`` if all messages are of that type; every value of another type is refused.

    Raises:
        ConfigurationTypeError: It is another type.
    """

    def __init__(self, kind: type[dict[Any, Any]] | type[list[Any]] | None = None) -> None:
        if kind not in (None, dict, list):
            raise ConfigurationTypeError(f"kind must be dict, list or None, not {brief(kind)}")
        self._kind = kind

    def encode(self, message: Any) -> bytes:
        """Return the message as canonical JSON."""
        _check_kind(message, self._kind)
        check_native(message)
        return canonical_json(message)

    def decode(self, payload: bytes) -> Any:
        """Return the parsed JSON."""
        found = json.loads(payload)
        if self._kind is not None and type(found) is not self._kind:
            raise ValueError(f"{type(found).__name__} where a {self._kind.__name__} should be")
        return found


class BytesCodec:
    """Bytes, as they are."""

    def encode(self, message: bytes) -> bytes:
        """Return the message."""
        if not isinstance(message, bytes):
            raise PayloadTypeError(f"message must be bytes, not {type(message).__name__}")
        return bytes(message)

    def decode(self, payload: bytes) -> bytes:
        """Return the payload."""
        return payload


class DataclassCodec(Generic[T]):
    """Objects of a dataclass, as JSON.

    Fields may be None, bool, int, float, str, datetime, date, UUID, Decimal, an Enum, another dataclass, a list, a
    tuple of one type, a dict with str keys, or one of these or None. Fields that the class does not have are ignored
    when a message is decoded, so that producers can be deployed before consumers.

    Args:
        kind: The dataclass.

    Raises:
        ConfigurationTypeError: It is no dataclass, or a field has another type.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._converter = _Converters().of(kind, kind.__name__ if isinstance(kind, type) else "codec")

    def encode(self, message: T) -> bytes:
        """Return the message as canonical JSON."""
        return canonical_json(self._converter.to_json(message))

    def decode(self, payload: bytes) -> T:
        """Return the message."""
        found: T = self._converter.from_json(json.loads(payload))
        return found


class PydanticCodec(Generic[T]):
    """Objects of a pydantic model, or of any other type that pydantic validates, as JSON.

    Args:
        kind: The model or type.

    Raises:
        MissingExtraError: pydantic is not installed.
    """

    def __init__(self, kind: type[T]) -> None:
        try:
            from pydantic import TypeAdapter
        except ImportError:
            raise MissingExtraError("PydanticCodec needs pydantic 2. Run: pip install 'pydantic>=2'") from None
        self._kind = kind
        self._adapter: Any = TypeAdapter(kind)

    def encode(self, message: T) -> bytes:
        """Return the message as canonical JSON."""
        _check_kind(message, self._kind)
        return canonical_json(self._adapter.dump_python(message, mode="json", by_alias=True))

    def decode(self, payload: bytes) -> T:
        """Return the validated message."""
        found: T = self._adapter.validate_json(payload)
        return found


class MsgspecCodec(Generic[T]):
    """Objects of a msgspec Struct, or of any other type that msgspec decodes, as JSON or MessagePack.

    Args:
        kind: The Struct or type.
        format: ``json`` or ``msgpack``.

    Raises:
        MissingExtraError: msgspec is not installed.
    """

    def __init__(self, kind: type[T], format: Literal["json", "msgpack"] = "json") -> None:
        try:
            import msgspec
        except ImportError:
            raise MissingExtraError("MsgspecCodec needs msgspec. Run: pip install msgspec") from None
        if format not in ("json", "msgpack"):
            raise ConfigurationTypeError(f"format must be 'json' or 'msgpack', not {format!r}")
        library: Any = getattr(msgspec, format)
        self._kind = kind
        self._encode = library.Encoder(order="deterministic").encode
        self._decode = library.Decoder(kind).decode

    def encode(self, message: T) -> bytes:
        """Return the message; equal messages give equal bytes."""
        _check_kind(message, self._kind)
        payload: bytes = self._encode(message)
        return payload

    def decode(self, payload: bytes) -> T:
        """Return the validated message."""
        found: T = self._decode(payload)
        return found


def codec_for(chosen: Any) -> Codec[Any] | None:
    """Return the codec that ``codec=`` stands for: a codec, or the type of the messages.

    Raises:
        ConfigurationTypeError: It is neither.
    """
    if chosen is None:
        return None
    if isinstance(chosen, type):
        return _codec_of_type(chosen)
    if not isinstance(chosen, Codec):
        raise ConfigurationTypeError(
            f"codec must be a codec or the type of the messages, not {type(chosen).__name__}; a codec has the methods "
            "encode(message) and decode(payload)"
        )
    for name in ("encode", "decode"):
        if is_async_function(getattr(chosen, name)):
            raise ConfigurationTypeError(
                f"codec: {type(chosen).__name__}.{name} is an async function, and no queue awaits a codec; make it a "
                "plain function"
            )
    return chosen


def _codec_of_type(kind: type) -> Codec[Any]:
    if kind is bytes:
        return BytesCodec()
    if kind in (dict, list):
        return JsonCodec(kind)
    if dataclasses.is_dataclass(kind):
        return DataclassCodec(kind)
    if hasattr(kind, "__struct_fields__"):
        return MsgspecCodec(kind)
    if hasattr(kind, "__pydantic_validator__"):
        return PydanticCodec(kind)
    raise ConfigurationTypeError(
        f"codec={kind.__name__} is not a type that a codec is known for: give a dataclass, a pydantic model, a msgspec "
        "Struct, dict, list or bytes, or a codec of your own"
    )


def encode_with(codec: Codec[Any], message: Any) -> bytes:
    """Return the payload of a message; raise a typed error if the codec cannot make one."""
    name = type(codec).__name__
    if message is None:
        raise PayloadTypeError("message must not be None, which means that there is no message")
    try:
        payload = codec.encode(message)
    except (PayloadTypeError, PayloadValueError, PayloadTooDeepError, PayloadTooLargeError):
        raise
    except RecursionError:
        raise PayloadTooDeepError(f"message nests deeper than {name} can encode; flatten it") from None
    except Exception as error:
        kind = PayloadValueError if isinstance(error, ValueError) else PayloadTypeError
        raise kind(f"message cannot be encoded by {name} ({described(error)})") from error
    if type(payload) is not bytes:
        if inspect.iscoroutine(payload):
            payload.close()
        raise PayloadTypeError(f"{name}.encode must return bytes, not {type(payload).__name__}")
    return payload


def decode_with(codec: Codec[Any], payload: bytes) -> Any:
    """Return the message of a payload; raise whatever the codec raises."""
    message = codec.decode(payload)
    if inspect.isawaitable(message):
        if inspect.iscoroutine(message):
            message.close()
        raise TypeError(f"{type(codec).__name__}.decode returned an awaitable, and no queue awaits a codec")
    if message is None:
        raise ValueError("it decodes to None, which means that there is no message")
    return message


def _check_kind(message: Any, kind: Any) -> None:
    if isinstance(kind, type) and not isinstance(message, kind):
        raise PayloadTypeError(f"message must be a {kind.__name__}, not {type(message).__name__}")


# -- dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class _Converter:
    """How a value of one type is written as JSON and read again; both raise for a value of another type."""

    to_json: Callable[[Any], Any]
    from_json: Callable[[Any], Any]


def _exactly(kind: type, *others: type) -> _Converter:
    def check(value: Any) -> Any:
        if type(value) not in (kind, *others):
            raise PayloadTypeError(f"{type(value).__name__} where {kind.__name__} is declared")
        return value

    return _Converter(check, check)


def _as_text(kind: type, write: Callable[[Any], str], read: Callable[[str], Any]) -> _Converter:
    def to_json(value: Any) -> str:
        if type(value) is not kind:
            raise PayloadTypeError(f"{type(value).__name__} where {kind.__name__} is declared")
        return write(value)

    def from_json(value: Any) -> Any:
        if type(value) is not str:
            raise ValueError(f"{type(value).__name__} where the text of a {kind.__name__} should be")
        return read(value)

    return _Converter(to_json, from_json)


def _native(value: Any) -> Any:
    check_native(value)
    return value


_SIMPLE: dict[Any, _Converter] = {
    **{kind: _exactly(kind) for kind in (bool, int, str, types.NoneType)},
    float: _exactly(float, int),
    datetime: _as_text(datetime, datetime.isoformat, datetime.fromisoformat),
    date: _as_text(date, date.isoformat, date.fromisoformat),
    UUID: _as_text(UUID, str, UUID),
    Decimal: _as_text(Decimal, str, Decimal),
    **{kind: _Converter(_native, _native) for kind in (Any, dict, list)},
}


class _Converters:
    """Makes the converters of a dataclass and of everything in it; a class may contain itself."""

    def __init__(self) -> None:
        self._made: dict[type, _Converter] = {}

    def of(self, kind: Any, where: str) -> _Converter:
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._of_dataclass(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _Converter(lambda value: _enum_value(kind, value), kind)
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType) and types.NoneType in inner and len(inner) == 2:
            return self._optional(self.of(next(one for one in inner if one is not types.NoneType), where))
        if origin is list or (origin is tuple and inner[1:] == (...,)):
            return self._series(origin, self.of(inner[0], f"{where}[]"))
        if origin is dict and inner[0] is str:
            return self._mapping(self.of(inner[1], f"{where}[...]"))
        raise ConfigurationTypeError(
            f"{where} has the type {kind!r}, which DataclassCodec does not know; use pydantic or msgspec, or a "
            "codec of your own"
        )

    def _of_dataclass(self, kind: type) -> _Converter:
        if kind in self._made:
            return self._made[kind]
        fields: dict[str, _Converter] = {}
        made = self._made[kind] = _Converter(
            lambda value: _object_to_json(kind, fields, value), lambda value: _object_from_json(kind, fields, value)
        )
        try:
            hints = get_type_hints(kind)
        except (NameError, TypeError) as error:
            raise ConfigurationTypeError(
                f"the fields of {kind.__name__} have unknown types: {error_text(error)}"
            ) from None
        for field in dataclasses.fields(kind):
            if field.init:
                fields[field.name] = self.of(hints[field.name], f"{kind.__name__}.{field.name}")
        return made

    @staticmethod
    def _optional(inner: _Converter) -> _Converter:
        return _Converter(
            lambda value: None if value is None else inner.to_json(value),
            lambda value: None if value is None else inner.from_json(value),
        )

    @staticmethod
    def _series(kind: Any, inner: _Converter) -> _Converter:
        def to_json(value: Any) -> Any:
            if type(value) is not kind:
                raise PayloadTypeError(f"{type(value).__name__} where {kind.__name__} is declared")
            return [inner.to_json(one) for one in value]

        def from_json(value: Any) -> Any:
            if type(value) is not list:
                raise ValueError(f"{type(value).__name__} where a list should be")
            return kind(inner.from_json(one) for one in value)

        return _Converter(to_json, from_json)

    @staticmethod
    def _mapping(inner: _Converter) -> _Converter:
        def convert(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def changed(value: Any) -> Any:
                if type(value) is not dict or any(type(key) is not str for key in value):
                    raise PayloadTypeError(f"{type(value).__name__} where a dict with str keys is declared")
                return {key: change(one) for key, one in value.items()}

            return changed

        return _Converter(convert(inner.to_json), convert(inner.from_json))


def _enum_value(kind: type[Enum], value: Any) -> Any:
    if not isinstance(value, kind):
        raise PayloadTypeError(f"{type(value).__name__} where {kind.__name__} is declared")
    check_native(value.value)
    return value.value


def _object_to_json(kind: type, fields: dict[str, _Converter], value: Any) -> dict[str, Any]:
    if type(value) is not kind:
        raise PayloadTypeError(f"message must be a {kind.__name__}, not {type(value).__name__}")
    return {name: _named(name, field.to_json, getattr(value, name)) for name, field in fields.items()}


def _object_from_json(kind: type, fields: dict[str, _Converter], value: Any) -> Any:
    if type(value) is not dict:
        raise ValueError(f"{type(value).__name__} where a {kind.__name__} should be")
    known = {name: _named(name, field.from_json, value[name]) for name, field in fields.items() if name in value}
    return kind(**known)


def _named(name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert a field, and let an error say which one it was."""
    try:
        return convert(value)
    except (PayloadTypeError, ValueError, TypeError) as error:
        kind = PayloadTypeError if isinstance(error, PayloadTypeError) else ValueError
        raise kind(f"{name}: {error_text(error)}") from error
