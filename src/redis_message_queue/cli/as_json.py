"""Any value of ours as JSON that a script can rely on."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from enum import Enum
from typing import Any


def to_json(thing: Any) -> str:
    """On one line: times in ISO 8601, spans in seconds; bytes that are no text stand under `<name>_base64`.

    What a terminal might obey (control characters, also those of C1, and marks of writing direction) is written as a
    JSON escape, as are lone surrogates: the value is the same for whoever parses it.
    """
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(_plain(thing), ensure_ascii=encoding != "utf8")
    return text if text.isprintable() else _BEYOND_ASCII.sub(_escaped, text)


_BEYOND_ASCII = re.compile(r"[^ -~]")  # json.dumps has escaped what stands before the space


def _escaped(found: re.Match[str]) -> str:
    one = found[0]
    if one.isprintable():
        return one
    return "\\u007f" if one == "\x7f" else json.dumps(one)[1:-1]


def as_facts(thing: Any) -> dict[str, Any]:
    """A mapping or a dataclass as a dict."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return dict(thing)


def as_text(value: bytes) -> str | None:
    """What the bytes say in UTF-8, if they do."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _plain(thing: Any) -> Any:
    if isinstance(thing, bytes):
        text = as_text(thing)
        return dict([_named("", thing)]) if text is None else text
    if isinstance(thing, Mapping) or dataclasses.is_dataclass(thing):
        return dict(_named(str(name), value) for name, value in as_facts(thing).items())
    if isinstance(thing, date):  # a datetime is one too
        return thing.isoformat()
    if isinstance(thing, timedelta):
        return thing.total_seconds()
    if isinstance(thing, Enum):
        return thing.value
    if isinstance(thing, list | tuple | set | frozenset | Iterator):
        return [_plain(one) for one in thing]
    return thing


def _named(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, bytes) and as_text(value) is None:
        return f"{name}_base64".lstrip("_"), base64.b64encode(value).decode()
    return name, _plain(value)
