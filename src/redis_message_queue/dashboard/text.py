"""Turns payloads and series of numbers into text that a page can show."""

from __future__ import annotations

import json
from collections.abc import Sequence

from redis_message_queue.values.plain_values import decoded, printable
from redis_message_queue.values.wording import UNKNOWN

_PAYLOAD_CHARACTERS = 200_000  # that a page shows; the rest can be downloaded


def rate(per_second: float | None) -> str:
    """Return a rate with as many digits as matter."""
    if per_second is None:
        return UNKNOWN
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"


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
