"""Headers: small texts that travel with a message beside its payload, such as the context of a trace.

They stand among the extras of a stored message, under a key of their own. Whoever reads them trusts nothing: what does
not map texts to texts is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from redis_message_queue.errors import PayloadTypeError, PayloadValueError

# Twice what W3C allows for baggage. Each message has its own copy in Redis, and a thousand of them go in one script.
MAX_HEADERS_BYTES = 16_384
_KEY = "headers"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def carried(headers: Any, asked: str = "get_headers") -> bytes:
    """The extras of a message with these headers, b"" without any; or a typed error that names who gave them."""
    if not isinstance(headers, Mapping):
        raise PayloadTypeError(f"{asked} must return a mapping of str to str, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str):
            raise PayloadTypeError(f"{asked} returned a name of type {type(name).__name__}; headers map str to str")
        if not isinstance(value, str):
            raise PayloadTypeError(
                f"{asked} returned a {type(value).__name__} for {name!r}; headers map str to str: format it first"
            )
    if not headers:
        return b""
    return _as_bytes(dict(headers), asked)


def _as_bytes(headers: dict[str, str], asked: str) -> bytes:
    try:
        extras = _encode({_KEY: headers}).encode()
    except UnicodeEncodeError:
        raise PayloadValueError(f"{asked} returned a lone surrogate, which UTF-8 cannot carry") from None
    if len(extras) > MAX_HEADERS_BYTES:
        raise PayloadValueError(
            f"{asked} returned headers of {len(extras):,} bytes as JSON, and {MAX_HEADERS_BYTES:,} is the most; "
            "put into the payload what is not about the delivery"
        )
    return extras


def found_in(extras: Any) -> dict[str, str]:
    """The headers among the extras of a message, or in its record; {} for none, and for what are no headers."""
    headers = extras.get(_KEY) if isinstance(extras, dict) else None
    if not isinstance(headers, dict):
        return {}
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def redriven(note: Mapping[str, Any]) -> bytes:
    """The extras of a message that repeats the one of this record: whom it repeats, and the same headers."""
    extras: dict[str, Any] = {}
    if note.get("id"):
        extras["replay_of"] = note["id"]
    if headers := found_in(dict(note)):
        extras[_KEY] = headers
    return _encode(extras).encode() if extras else b""
