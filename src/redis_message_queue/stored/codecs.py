"""Codecs: how objects become payloads, and payloads objects again.

A codec is symmetrical: what was published as an object arrives as an equal one. The built-in codecs write canonical
JSON, so that equal objects have equal payloads, and deduplication recognises them. None of them runs code that a
message names, as a pickle would.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar, get_type_hints, runtime_checkable

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
from redis_message_queue.values.plain_values import brief, class_name, described, error_text

__all__ = ["BytesCodec", "Codec", "DataclassCodec", "JsonCodec", "MsgspecCodec", "PydanticCodec"]

T = TypeVar("T")


@runtime_checkable
class Codec(Protocol[T]):
    """Turns messages into payloads and back. Subclass nothing: two methods are enough."""

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
            raise ValueError(f"{class_name(found)} where a {self._kind.__name__} should be")
        return found


class BytesCodec:
    """Bytes, as they are."""

    def encode(self, message: bytes) -> bytes:
        """Return the message."""
        if not isinstance(message, bytes):
            raise PayloadTypeError(f"message must be bytes, not {class_name(message)}")
        return bytes(message)

    def decode(self, payload: bytes) -> bytes:
        """Return the payload."""
        return payload


class DataclassCodec(Generic[T]):
    """Objects of a dataclass, as JSON. msgspec does the work, or else pydantic.

    A message is checked when it is published: one that would not come out as an equal object is refused. Fields that
    the class does not have are ignored when a message is decoded, so that producers can be deployed before consumers.

    Args:
        kind: The dataclass.

    Raises:
        ConfigurationTypeError: It is no dataclass, or a field has a type that is not known.
        MissingExtraError: Neither msgspec nor pydantic is installed.
    """

    def __init__(self, kind: type[T]) -> None:
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise ConfigurationTypeError(f"kind must be a dataclass, not {brief(kind)}")
        self._kind = kind
        try:
            get_type_hints(kind)
            self._to_json, self._from_json = _dataclass_functions(kind)
        except (NameError, TypeError) as error:
            raise ConfigurationTypeError(
                f"the fields of {kind.__name__} have types that cannot be decoded: {error_text(error)}"
            ) from error

    def encode(self, message: T) -> bytes:
        """Return the message as canonical JSON."""
        _check_kind(message, self._kind)
        payload = canonical_json(self._to_json(message))
        try:
            found = self._from_json(payload)
        except ValueError as error:
            raise PayloadTypeError(f"message is no valid {self._kind.__name__}: {error_text(error)}") from error
        # Two objects of a class that does not compare its fields are never equal.
        if found != message and found == self._from_json(payload):
            raise PayloadTypeError(
                f"message would not be delivered as an equal {self._kind.__name__}; give each field a value of its type"
            )
        return payload

    def decode(self, payload: bytes) -> T:
        """Return the validated message."""
        found: T = self._from_json(payload)
        return found


def _dataclass_functions(kind: type) -> tuple[Callable[[Any], Any], Callable[[bytes], Any]]:
    """Return how objects of a dataclass become values of JSON, and how they are read again."""
    with suppress(ImportError):
        import msgspec

        return partial(msgspec.to_builtins, str_keys=True), msgspec.json.Decoder(kind).decode
    with suppress(ImportError):
        from pydantic import TypeAdapter

        adapter: Any = TypeAdapter(kind)
        write = partial(adapter.dump_python, mode="json", warnings=False)
        return write, partial(adapter.validate_json, strict=True)
    raise MissingExtraError(
        f"a codec for the dataclass {kind.__name__} needs msgspec or pydantic; run: "
        "pip install 'redis-exact-queue[types]'"
    )


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
            raise MissingExtraError("PydanticCodec needs pydantic 2; run: pip install 'pydantic>=2'") from None
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
            raise MissingExtraError("MsgspecCodec needs msgspec; run: pip install msgspec") from None
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
            f"codec must be a codec or the type of the messages, not {class_name(chosen)}; a codec has the methods "
            "encode(message) and decode(payload)"
        )
    for name in ("encode", "decode"):
        if is_async_function(getattr(chosen, name)):
            raise ConfigurationTypeError(
                f"codec: {class_name(chosen)}.{name} is an async function, and no queue awaits a codec; make it a "
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
    name = class_name(codec)
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
        raise PayloadTypeError(f"{name}.encode must return bytes, not {class_name(payload)}")
    return payload


def decode_with(codec: Codec[Any], payload: bytes) -> Any:
    """Return the message of a payload; raise whatever the codec raises."""
    message = codec.decode(payload)
    if inspect.isawaitable(message):
        if inspect.iscoroutine(message):
            message.close()
        raise TypeError(f"{class_name(codec)}.decode returned an awaitable, and no queue awaits a codec")
    if message is None:
        raise ValueError("it decodes to None, which means that there is no message")
    return message


def _check_kind(message: Any, kind: Any) -> None:
    if isinstance(kind, type) and not isinstance(message, kind):
        raise PayloadTypeError(f"message must be a {kind.__name__}, not {class_name(message)}")
