"""Says numbers, times and hostile bytes in words that people can read."""

from __future__ import annotations

from datetime import datetime

from redis_message_queue.values.plain_values import printable

UNKNOWN = "\N{EN DASH}"
_LINE_CHARACTERS = 160
_UNITS = ((86_400, "day"), (3_600, "h"), (60, "min"))


def count(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def messages(number: int) -> str:
    """Return so many messages, in words."""
    return f"{number:,} message{'' if number == 1 else 's'}"


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


def when(time: datetime | None) -> str:
    """Return a time in UTC to the second."""
    return UNKNOWN if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def one_line(text: str | bytes | None, characters: int = _LINE_CHARACTERS) -> str:
    """Return the beginning of a text on one line, with control characters made visible."""
    if text is None:
        return UNKNOWN
    shown = printable(text[: 4 * characters])
    is_whole = len(text) <= 4 * characters and len(shown) <= characters
    return shown if is_whole else shown[: characters - 1] + "…"
