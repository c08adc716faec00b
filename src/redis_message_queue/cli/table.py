"""Tables for people: drawn by rich in a terminal, plain columns elsewhere."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from redis_message_queue.cli.as_json import as_text, to_json


def draw(heads: Sequence[str] | None, rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Rows of values under their headings, or without any."""
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [all(is_number(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    if sys.stdout.isatty():
        _draw_richly(heads, cells, numeric, title)
    else:
        _draw_plainly(heads, cells, numeric)


def _draw_plainly(heads: Sequence[str] | None, rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    """Columns that grep and awk can read: two spaces between them, one row a line, whatever its length."""
    lines = [*([heads] if heads else []), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))] if lines else []
    for line in lines:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(padded).rstrip())
    sys.stdout.flush()


def _draw_richly(
    heads: Sequence[str] | None, rows: Sequence[Sequence[str]], numeric: Sequence[bool], title: str | None
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=None if title is None else Text(printable(title), style="table.title"),
        title_justify="left",
        show_header=heads is not None,
    )
    for head, right in zip(heads or [""] * len(numeric), numeric, strict=True):
        table.add_column(head, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a payload's [brackets] are no markup
    Console().print(table)


def is_number(value: Any) -> bool:
    """What stands at the right of its column; an unknown one does too."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell(value: Any) -> str:
    """A value as people read it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds")
        case date():
            return value.isoformat()
        case str() | bytes():
            return printable(value)
        case list() | tuple() | dict():
            return printable(to_json(value))
    return printable(str(value))


def printable_lines(text: str) -> str:
    """The same for text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable(text: str | bytes) -> str:
    """Nothing in it moves the cursor, rings or breaks the line; bytes that are no text as base64."""
    if isinstance(text, bytes):
        decoded = as_text(text)
        if decoded is None:
            return "base64:" + base64.b64encode(text).decode()
        text = decoded
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
