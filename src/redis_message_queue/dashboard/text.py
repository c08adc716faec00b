"""Turns numbers, times and hostile bytes into text that people can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from redis_message_queue.values.plain_values import decoded, printable

UNKNOWN = "\N{EN DASH}"
_LINE_CHARACTERS = 160
_PAYLOAD_CHARACTERS = 200_000  # that a page shows; the rest can be downloaded
_UNITS = ((86_400, "day"), (3_600, "h"), (60, "min"))


def count(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def messages(number: int) -> str:
    """Return so many messages, in words."""
    return f"{number:,} message{'' if number == 1 else 's'}"


def rate(per_second: float | None) -> str:
    """Return a rate with as many digits as matter."""
    if per_second is None:
        return UNKNOWN
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"


def age(seconds: float | None) -> str:
    """Return a duration as people say it: 250 ms, 12 s, 4 min, 3 h 5 min, 2 days."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds == float("inf"):
        return "unknown time"
    for place, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            name = f"{unit}s" if unit == "day" and whole > 1 else unit
            smaller = _UNITS[place + 1] if place + 1 < len(_UNITS) else None
            part = f" {rest // smaller[0]} {smaller[1]}" if smaller and whole < 10 and rest // smaller[0] else ""
            return f"{whole} {name}{part}"
    raise AssertionError("a minute is the smallest unit")


def clock(time: datetime | None) -> str:
    """Return a time in UTC."""
    return UNKNOWN if time is None else f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d} UTC"


def one_line(text: str | bytes | None, characters: int = _LINE_CHARACTERS) -> str:
    """Return the beginning of a text on one line, with control characters made visible."""
    if text is None:
        return UNKNOWN
    shown = printable(text[: 4 * characters])
    is_whole = len(text) <= 4 * characters and len(shown) <= characters
    return shown if is_whole else shown[: characters - 1] + "…"


def lines(text: str) -> str:
    """Return a text of several lines, with all other control characters made visible."""
    return printable(text, keep="\n\t")


def payload_views(payload: str | bytes | None) -> list[tuple[str, str]]:
    """Return the forms in which to show a payload, each with its title: formatted JSON, text, or bytes in hex."""
    if payload is None:
        return []
    text = payload if isinstance(payload, str) else decoded(payload)
    if text is None:
        assert isinstance(payload, bytes)
        return [("Bytes in hex", _cut(payload[:_PAYLOAD_CHARACTERS].hex(" ", 2)))]
    views = [("Text", lines(_cut(text)))]
    if len(text) <= _PAYLOAD_CHARACTERS:
        try:
            formatted = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return views
        if formatted != text:
            views.insert(0, ("JSON, formatted", lines(_cut(formatted))))
    return views


def _cut(text: str) -> str:
    return text if len(text) <= _PAYLOAD_CHARACTERS else text[:_PAYLOAD_CHARACTERS] + "…"


def points(values: Sequence[float], width: int, height: int, top: float | None = None) -> str:
    """Return the points of a line through the values, for an SVG of this size."""
    values = values if len(values) > 1 else [*values, *values]  # one value is a line, too
    greatest = max(top or 0, max(values, default=0)) or 1
    step = width / max(1, len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{height - 1 - value / greatest * (height - 2):.1f}" for place, value in enumerate(values)
    )
