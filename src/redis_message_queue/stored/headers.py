"""Headers: small texts that travel with a message beside its payload, such as a trace context.

They are stored as JSON in the extras of a message. Anybody who can write to Redis can write them, so reading ignores
whatever is not a mapping of text to text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from redis_message_queue.values.errors import PayloadTypeError, PayloadValueError
from redis_message_queue.values.plain_values import brief, is_text

# Twice what W3C allows for baggage. Each message has its own copy in Redis, and one script stores up to a thousand.
MAX_HEADERS_BYTES = 16_384
_KEY = "headers"
_REPLAY = "replay_of"
_LONGEST_ID = 64  # characters: ours have 32

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(headers: Any, source: str = "get_headers") -> bytes:
    """Return the extras of a message with these headers, b"" if there are none.

    ``source`` is the function that returned them, or "headers" if they were passed as this argument.

    Raises:
        PayloadTypeError, PayloadValueError: These are no headers, or too much.
    """
    must, has = ("must be", "has") if source == "headers" else ("must return", "returned")
    if not isinstance(headers, Mapping):
        raise PayloadTypeError(f"{source} {must} a mapping of str to str, not {type(headers).__name__}")
    for name, value in headers.items():
        if not is_text(name):
            raise PayloadTypeError(f"{source} {has} a name of type {type(name).__name__}; headers map str to str")
        if not is_text(value):
            raise PayloadTypeError(
                f"{source} {has} a {type(value).__name__} for {brief(name)}; headers map str to str: format it first"
            )
    if not headers:
        return b""
    try:
        extras = _to_json({_KEY: dict(headers)}).encode()
    except UnicodeEncodeError:
        raise PayloadValueError(f"{source} {has} a lone surrogate, which UTF-8 cannot encode; remove it") from None
    if len(extras) > MAX_HEADERS_BYTES:
        raise PayloadValueError(
            f"{source} {has} headers of {len(extras):,} bytes as JSON, and {MAX_HEADERS_BYTES:,} is the most; "
            "move what is not about the delivery into the payload"
        )
    return extras


def decode(extras: Any) -> dict[str, str]:
    """Return the headers in the extras of a message or in its record, {} if there are none."""
    headers = extras.get(_KEY) if isinstance(extras, dict) else None
    if not isinstance(headers, dict):
        return {}
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def replay_of(extras: Any) -> str | None:
    """Return the id of the dead letter that was redriven as this message, None if there is none."""
    found = extras.get(_REPLAY) if isinstance(extras, dict) else None
    return text_of(found)


def text_of(value: Any) -> str | None:
    """Return text that can be encoded, None for what is no text: another program may have written it."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else None


def for_redrive(record: Mapping[str, Any]) -> bytes:
    """Return the extras of a message that repeats the one of this record: its id, and the same headers.

    Headers that no publish would have accepted are left out: another program has written them.
    """
    replayed, headers = text_of(record.get("id")), decode(dict(record))
    extras: dict[str, Any] = {_REPLAY: replayed} if replayed and len(replayed) <= _LONGEST_ID else {}
    whole = _encoded(extras | {_KEY: headers}) if headers else b""
    return whole if 0 < len(whole) <= MAX_HEADERS_BYTES + _LONGEST_ID else _encoded(extras)


def _encoded(extras: dict[str, Any]) -> bytes:
    """Return extras as UTF-8; a lone surrogate becomes an escape of JSON."""
    return _to_json(extras).encode("utf-8", "backslashreplace") if extras else b""
