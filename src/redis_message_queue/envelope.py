"""Bytes to message and back: what is stored in Redis for each message, and what may be stored at all.

A stored message is one string::

    flags (1 byte) | id (16) | published_at (8, microseconds, big-endian) | [tenant] | [extras] | payload

A tenant has one byte of length before it, extras two: a small JSON object that travels with the payload. The
publish script writes the time in the middle, because only the server's clock counts. 25 bytes of
header beside a 198-byte payload keep a pending message under 240 bytes of Redis memory.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from redis_message_queue.errors import (
    PayloadTooDeepError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
)

HAS_TENANT = 0x01
HAS_ENTRY = 0x02  # set by the scripts once a message has numbers of its own in the deliveries hash
HAS_EXTRAS = 0x04
LAST_FLAGS = 0x87  # with all of them
MAX_TENANT_BYTES = 255
MAX_EXTRAS_BYTES = 65_535
ID_BYTES = 16
NONCE_BYTES = 20  # host, process and slot of a claim, and its number: see lua/lib/nonce.lua
TOKEN_BYTES = ID_BYTES + NONCE_BYTES  # a member of `leases`
BASE_BYTES = 14  # of the ids of a chunk, which are the same; the place in the chunk follows
TIME_AT = 1 + ID_BYTES
HEADER_BYTES = TIME_AT + 8

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_encode_canonically = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


class Envelope:
    """A stored message, opened as far as it is looked into: most handlers want the payload alone."""

    __slots__ = ("stored",)

    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    @property
    def id(self) -> bytes:
        return self.stored[1:TIME_AT]

    @property
    def payload(self) -> bytes:
        stored, start = self.stored, HEADER_BYTES
        if stored[0] & HAS_TENANT:
            start += 1 + stored[HEADER_BYTES]
        if stored[0] & HAS_EXTRAS:
            start += 2 + int.from_bytes(stored[start : start + 2], "big")
        return stored[start:]

    @property
    def published_at(self) -> float:
        """Seconds of the server's clock."""
        return int.from_bytes(self.stored[TIME_AT:HEADER_BYTES], "big") / 1_000_000

    @property
    def tenant(self) -> str | None:
        if not self.stored[0] & HAS_TENANT:
            return None
        length = self.stored[HEADER_BYTES]
        return tenant_text(self.stored[HEADER_BYTES + 1 : HEADER_BYTES + 1 + length])

    @property
    def extras(self) -> dict[str, Any]:
        """What travels with the payload, such as the id of the message that this one repeats; {} if it is no object."""
        if not self.stored[0] & HAS_EXTRAS:
            return {}
        start = HEADER_BYTES + (1 + self.stored[HEADER_BYTES] if self.stored[0] & HAS_TENANT else 0)
        length = int.from_bytes(self.stored[start : start + 2], "big")
        try:
            extras = json.loads(self.stored[start + 2 : start + 2 + length])
        except (ValueError, RecursionError):  # somebody else's bytes
            return {}
        return extras if isinstance(extras, dict) else {}


def head(message_id: bytes) -> bytes:
    """What stands before the time stamp of a message with a payload alone."""
    return b"\x80" + message_id


def body(payload: bytes, tenant: bytes = b"", extras: bytes = b"") -> bytes:
    """Flags, and what follows the time stamp."""
    flags = 0x80 | (HAS_TENANT if tenant else 0) | (HAS_EXTRAS if extras else 0)
    parts = [bytes((flags,))]
    if tenant:
        parts += [bytes((len(tenant),)), tenant]
    if extras:
        parts += [len(extras).to_bytes(2, "big"), extras]
    return b"".join((*parts, payload))


def tenant_name(tenant: Any) -> bytes:
    """A tenant's name as UTF-8, or a typed error that says which names there are."""
    if not isinstance(tenant, str):
        raise PayloadTypeError(f"tenant must be a str, not {type(tenant).__name__}")
    name = _to_utf8(tenant, "tenant")
    if not name or len(name) > MAX_TENANT_BYTES:
        raise PayloadValueError(f"tenant must have 1 to {MAX_TENANT_BYTES} bytes of UTF-8, not {len(name)}")
    return name


def tenant_text(name: bytes) -> str:
    """A tenant as people read it. Somebody else may have written bytes that are no UTF-8: they are shown as `\\xff`."""
    return name.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class PayloadRules:
    """What a queue lets in, and how it becomes bytes."""

    strict_types: bool = False
    max_bytes: int | None = None
    max_depth: int | None = None

    def encode(self, message: str | dict[str, Any]) -> bytes:
        """The payload as UTF-8, or a typed error that names what is wrong with it."""
        if isinstance(message, str):
            text: str = message
        elif isinstance(message, dict):
            text = self._encode_dict(message)
        else:
            raise PayloadTypeError(
                f"message must be a str or a dict, not {type(message).__name__}; "
                "encode anything else to one of these before publishing"
            )
        payload = _to_utf8(text)
        if self.max_bytes is not None and len(payload) > self.max_bytes:
            raise PayloadTooLargeError(
                f"message has {len(payload)} bytes and max_payload_bytes is {self.max_bytes}; "
                "shorten it, or publish a reference to it"
            )
        return payload

    def _encode_dict(self, message: dict[str, Any]) -> str:
        # With a depth limit the walk goes first: the encoder would recurse into a hostile structure.
        if self.max_depth is not None:
            self._inspect(message)
        try:
            text = _encode(message)
        except RecursionError:
            raise PayloadTooDeepError("message nests deeper than Python can encode; flatten it") from None
        except TypeError as error:
            self._inspect(message)  # knows the path where it is a matter of strict types
            raise PayloadTypeError(f"message cannot be written as JSON: {error}") from error
        except ValueError as error:
            raise PayloadValueError(f"message cannot be written as JSON: {error}") from error
        if self.strict_types or not _has_only_text_keys(message):
            self._inspect(message)
        return text

    def _inspect(self, message: dict[str, Any]) -> None:
        """Walk the message with the path in hand, and raise at the first thing that must not be there."""
        limit = _DEEPEST if self.max_depth is None else self.max_depth
        waiting: list[tuple[Any, _Path]] = [(message, _Path(None, "", 1))]
        while waiting:
            value, path = waiting.pop()
            if isinstance(value, dict | list | tuple) and path.depth > limit:
                raise PayloadTooDeepError(f"message nests deeper than {limit} levels; flatten it")
            if isinstance(value, dict):
                for key, inner in value.items():
                    if not isinstance(key, str):
                        raise PayloadTypeError(
                            f"a key at {path} is of type {type(key).__name__}; JSON keys are strings: "
                            "convert it before publishing"
                        )
                    waiting.append((inner, path.down(key)))
            elif isinstance(value, list) or (isinstance(value, tuple) and not self.strict_types):
                waiting.extend((inner, path.down(place)) for place, inner in enumerate(value))
            elif self.strict_types and not _is_native(value):
                raise PayloadTypeError(
                    f"value at {path} is a {type(value).__name__}, which JSON does not give back unchanged; "
                    "strict_payload_types allows None, bool, int, float, str, list and dict"
                )


# The walk of a structure that contains itself must end somewhere; json's own encoder gives up earlier.
_DEEPEST = 10_000


@dataclass(frozen=True, slots=True)
class _Path:
    """Where in a message we are; spelled out only for an error."""

    parent: _Path | None
    step: str | int
    depth: int

    def down(self, step: str | int) -> _Path:
        return _Path(self, step, self.depth + 1)

    def __str__(self) -> str:
        steps: list[str] = []
        here: _Path | None = self
        while here is not None and here.parent is not None:
            steps.append(f"[{here.step!r}]")
            here = here.parent
        return "message" + "".join(reversed(steps))


def _is_native(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def _has_only_text_keys(message: dict[Any, Any]) -> bool:
    """json.dumps turns other keys into strings without a word; this quick look costs about 1 µs a dict."""
    waiting: list[Any] = [message]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                return False
            value = value.values()
        waiting.extend(inner for inner in value if isinstance(inner, dict | list | tuple))
    return True


def _to_utf8(text: str, what: str = "message") -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise PayloadValueError(
            f"{what} has a lone surrogate at position {error.start}, which UTF-8 cannot carry; "
            "decode the text properly before publishing"
        ) from None


def content_key(message: str | dict[str, Any]) -> str:
    """The deduplication key of a message without a key function: the SHA-256 of its canonical content.

    A dict counts by what it holds, not by the order of its keys.
    """
    try:
        text = message if isinstance(message, str) else _encode_canonically(message)
    except RecursionError:
        raise PayloadTooDeepError("message nests deeper than Python can encode; flatten it") from None
    return hashlib.sha256(text.encode()).hexdigest()
