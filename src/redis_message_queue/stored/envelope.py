"""The stored form of a message: how it is encoded, decoded and checked.

A stored message is one string::

    flags (1 byte) | id (16) | published_at (8, microseconds, big-endian) | [tenant] | [extras] | [ttl (8)] | payload

The length of a tenant takes one byte, that of the extras two. The extras are a small JSON object that travels with
the payload. The time to live is in microseconds from the time of publication. The publish script fills in that time,
because only the server's clock counts. With a header of 25 bytes, a pending message with a 198-byte payload takes less
than 240 bytes of Redis memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from redis_message_queue.values.errors import (
    PayloadTooDeepError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
)
from redis_message_queue.values.plain_values import error_text, is_text

HAS_TENANT = 0x01
HAS_ENTRY = 0x02  # set by the scripts once a message has a field in the deliveries hash
HAS_EXTRAS = 0x04
HAS_TTL = 0x08
PLAIN_FLAGS = 0x80  # none set: no text begins with it
LAST_FLAGS = 0x8F  # all flags set
_PLAIN_HEAD = bytes((PLAIN_FLAGS,))
_BEFORE_PAYLOAD = HAS_TENANT | HAS_EXTRAS | HAS_TTL
MAX_TENANT_BYTES = 255
MAX_EXTRAS_BYTES = 65_535
ID_BYTES = 16
PROCESS_BYTES = 8  # host and process of a claim, at the beginning of its nonce
NONCE_BYTES = 20  # host, process and slot of a claim, and its number: see lua/claim.lua
TOKEN_BYTES = ID_BYTES + NONCE_BYTES  # a member of `leases`
_NOBODY = bytes(5)  # instead of the number of a claim, while a message waits for its next attempt
BASE_BYTES = 14  # the part that all ids of a chunk share; the position in the chunk follows
TIME_AT = 1 + ID_BYTES
HEADER_BYTES = TIME_AT + 8
TTL_BYTES = 8

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_encode_canonically = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


def _one_pass_encoder() -> Callable[[Any, int], Iterable[str]]:
    """Return an encoder of dicts that is made once: `JSONEncoder.encode` makes one for each message.

    It gives the pieces of the text. It does not look for a structure that contains itself, and ends in a RecursionError
    there. Its second argument is the level of indentation, always 0.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # not CPython
        return lambda message, _: (_encoder.encode(message),)
    encode: Callable[[Any, int], Iterable[str]] = make(
        None, _encoder.default, json.encoder.encode_basestring, None, ": ", ", ", False, False, False
    )
    return encode


_encode = _one_pass_encoder()


class Envelope:
    """A stored message, decoded on demand: most handlers need only the payload."""

    __slots__ = ("stored",)

    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    @property
    def id(self) -> bytes:
        return self.stored[1:TIME_AT]

    @property
    def payload(self) -> bytes:
        stored, start = self.stored, HEADER_BYTES
        if not stored[0] & _BEFORE_PAYLOAD:
            return stored[HEADER_BYTES:]
        if stored[0] & HAS_TENANT:
            start += 1 + stored[HEADER_BYTES]
        if stored[0] & HAS_EXTRAS:
            start += 2 + int.from_bytes(stored[start : start + 2], "big")
        if stored[0] & HAS_TTL:
            start += TTL_BYTES
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
        """The headers and other fields beside the payload; {} if they are not a JSON object."""
        if not self.stored[0] & HAS_EXTRAS:
            return {}
        start = HEADER_BYTES + (1 + self.stored[HEADER_BYTES] if self.stored[0] & HAS_TENANT else 0)
        length = int.from_bytes(self.stored[start : start + 2], "big")
        try:
            extras = json.loads(self.stored[start + 2 : start + 2 + length])
        except (ValueError, RecursionError):  # bytes that another program wrote
            return {}
        return extras if isinstance(extras, dict) else {}


def is_message(stored: bytes) -> bool:
    """Return whether these bytes are a stored message: the scripts decide in the same way (lua/lib/envelope.lua)."""
    # The first byte of the time is 0 for some thousand years to come, and rarely so in bytes that are not ours.
    if len(stored) < HEADER_BYTES or not 0x80 <= stored[0] <= LAST_FLAGS or stored[TIME_AT] != 0:
        return False
    at = HEADER_BYTES
    if stored[0] & HAS_TENANT:
        at += 1 + stored[at] if at < len(stored) else len(stored)
    if stored[0] & HAS_EXTRAS:
        at += 2 + int.from_bytes(stored[at : at + 2], "big") if at + 2 <= len(stored) else len(stored)
    if stored[0] & HAS_TTL:
        at += TTL_BYTES
    return at <= len(stored)


def head(message_id: bytes) -> bytes:
    """The bytes before the time stamp, for a message without tenant and extras."""
    return _PLAIN_HEAD + message_id


def preamble(tenant: bytes = b"", extras: bytes = b"", ttl_us: int = 0) -> bytes:
    """The flags, followed by the bytes between the time stamp and the payload."""
    flags = 0x80 | (HAS_TENANT if tenant else 0) | (HAS_EXTRAS if extras else 0) | (HAS_TTL if ttl_us else 0)
    parts = [bytes((flags,))]
    if tenant:
        parts += [bytes((len(tenant),)), tenant]
    if extras:
        parts += [len(extras).to_bytes(2, "big"), extras]
    if ttl_us:
        parts.append(ttl_us.to_bytes(TTL_BYTES, "big"))
    return b"".join(parts)


def body(payload: bytes, tenant: bytes = b"", extras: bytes = b"", ttl_us: int = 0) -> bytes:
    """The flags, followed by the bytes after the time stamp."""
    return preamble(tenant, extras, ttl_us) + payload


def process_of(token: bytes) -> bytes:
    """Return the host and the process of a claim, which its token contains; empty for what is no token of a claim."""
    is_claim = len(token) == TOKEN_BYTES and not holds_place_of_retry(token)
    return token[ID_BYTES : ID_BYTES + PROCESS_BYTES] if is_claim else b""


def holds_place_of_retry(token: bytes) -> bool:
    """Return whether a message waits for its next attempt, and others of its tenant behind it: see retry_later.lua."""
    return len(token) == TOKEN_BYTES and token.endswith(_NOBODY)


def tenant_name(tenant: Any) -> bytes:
    """A tenant's name as UTF-8, or a typed error that says which names are allowed."""
    if not is_text(tenant):
        raise PayloadTypeError(f"tenant must be a str, not {type(tenant).__name__}")
    name = _to_utf8(tenant, "tenant")
    if not name or len(name) > MAX_TENANT_BYTES:
        raise PayloadValueError(f"tenant must have 1 to {MAX_TENANT_BYTES} bytes of UTF-8, not {len(name)}")
    return name


def tenant_text(name: bytes) -> str:
    """A tenant's name as text. Bytes that are not UTF-8, written by another program, are shown as `\\xff`."""
    return name.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class PayloadRules:
    """The rules for the payloads of a queue, and how they are encoded."""

    strict_types: bool = False
    max_bytes: int | None = None
    max_depth: int | None = None

    def encode(self, message: str | dict[str, Any]) -> bytes:
        """The payload as UTF-8, or a typed error that names what is wrong with it."""
        if isinstance(message, dict):
            text = self._encode_dict(message)
        elif isinstance(message, str):
            text = message
        else:
            raise PayloadTypeError(
                f"message must be a str or a dict, not {type(message).__name__}; encode it before publishing, or pass "
                "codec= to the queue, such as the type of a dataclass, list or bytes"
            )
        return self.checked_size(_to_utf8(text))

    def checked_size(self, payload: bytes) -> bytes:
        """The payload, or an error if it is too large."""
        if self.max_bytes is not None and len(payload) > self.max_bytes:
            raise PayloadTooLargeError(
                f"message has {len(payload)} bytes and max_payload_bytes is {self.max_bytes}; "
                "shorten it, or publish a reference to it"
            )
        return payload

    def _encode_dict(self, message: dict[str, Any]) -> str:
        # Check the depth before encoding: the encoder would recurse into a hostile structure.
        if self.max_depth is not None:
            self._inspect(message)
        try:
            try:
                text = "".join(_encode(message, 0))
            except RecursionError:
                text = _encoder.encode(message)  # which tells whether it contains itself
        except RecursionError:
            raise PayloadTooDeepError("message nests deeper than Python can encode; flatten it") from None
        except TypeError as error:
            self._inspect(message)  # names the path, if strict types are the reason
            raise PayloadTypeError(f"message cannot be written as JSON: {error_text(error)}") from error
        except ValueError as error:
            raise PayloadValueError(f"message cannot be written as JSON: {error_text(error)}") from error
        if self.strict_types or not _has_only_text_keys(message):
            self._inspect(message)
        return text

    def _inspect(self, message: Any) -> None:
        """Raise at the first value that is not allowed, and name its path."""
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
                    f"value at {path} is a {type(value).__name__}, which JSON cannot represent exactly; "
                    "strict_payload_types allows None, bool, int, float, str, list and dict"
                )


def check_native(value: Any) -> None:
    """Raise at the first part of a value that JSON cannot represent exactly."""
    PayloadRules(strict_types=True)._inspect(value)


# Ends the walk of a structure that contains itself; json's own encoder gives up earlier.
_DEEPEST = 10_000


@dataclass(frozen=True, slots=True)
class _Path:
    """A place in a message; formatted only for an error."""

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


try:
    from orjson import dumps as _dumps
except ImportError:  # it is optional
    _refuse_other_keys: Callable[[Any], object] | None = None
else:
    _refuse_other_keys = _dumps

_SCALARS = frozenset((str, int, float, bool, type(None)))
_LISTS = (list, tuple)


def _has_only_text_keys(message: dict[Any, Any]) -> bool:
    """json.dumps silently turns other keys into strings; this check costs 0.3 µs for each dict or list.

    orjson writes such a message faster than we can look at it, and refuses keys that are no text. But it writes other
    bytes than the standard library, so what it writes is thrown away: what is stored must not depend on it.
    """
    if _refuse_other_keys is not None:
        try:
            _refuse_other_keys(message)
        except TypeError:  # also for values that it does not know
            pass
        else:
            return True
    waiting: list[Any] = [message]
    for value in waiting:
        if isinstance(value, dict):
            try:
                "".join(value)  # the quickest way to ask: it takes nothing but text
            except TypeError:
                return False
            inner: Iterable[Any] = value.values()
        elif isinstance(value, _LISTS):
            inner = value
        else:
            continue
        for one in inner:
            if type(one) not in _SCALARS:
                waiting.append(one)
    return True


def _to_utf8(text: str, what: str = "message") -> bytes:
    try:
        return str.encode(text)  # a subclass may have an `encode` of its own
    except TypeError:
        raise PayloadTypeError(f"{what} must be a str, not {type(text).__name__}") from None
    except UnicodeEncodeError as error:
        raise PayloadValueError(
            f"{what} has a lone surrogate at position {error.start}, which UTF-8 cannot encode; "
            "decode the text properly before publishing"
        ) from None


def content_key(message: str | dict[str, Any]) -> str:
    """The deduplication key of a message without a key function: the SHA-256 of its canonical content.

    The order of keys in a dict does not matter.
    """
    try:
        text = message if isinstance(message, str) else _encode_canonically(message)
    except RecursionError:
        raise PayloadTooDeepError("message nests deeper than Python can encode; flatten it") from None
    return payload_key(str.encode(text))


def payload_key(payload: bytes) -> str:
    """The deduplication key of a message that a codec has encoded: the SHA-256 of its payload."""
    return hashlib.sha256(payload).hexdigest()


def canonical_json(value: Any) -> bytes:
    """The same bytes for equal values, whatever the order of their keys is."""
    try:
        return _to_utf8(_encode_canonically(value))
    except ValueError as error:
        raise PayloadValueError(f"message cannot be written as JSON: {error_text(error)}") from error
