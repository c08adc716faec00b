"""The output of a command: data on stdout, as a table or as JSON, and remarks on stderr."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Annotated, Any

import typer

from redis_message_queue.values.plain_values import decoded, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a command prints its data; as a parameter of a command it is the option `--json`."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False

    def document(self, thing: Any) -> None:
        """Print one mapping or dataclass: a JSON object, or a line for each of its fields."""
        if self.json:
            self.line(thing)
        else:
            _draw(None, [(_heading(name), value) for name, value in to_dict(thing).items()], None)

    def table(
        self,
        rows: Iterable[Any],
        *,
        columns: Sequence[str] | None = None,
        title: str | None = None,
        empty: str = "nothing",
    ) -> int:
        """Print mappings or dataclasses, one JSON object a line or a table, and return how many there were.

        ``columns`` selects and orders what the table shows; JSON has everything. ``empty`` goes to stderr.
        """
        if self.json:
            return sum(self.line(row) for row in rows)
        found = [to_dict(row) for row in rows]
        if not found:
            say(empty)
            return 0
        shown = list(columns or found[0])
        _draw([_heading(name) for name in shown], [[row.get(name) for name in shown] for row in found], title)
        return len(found)

    def line(self, row: Any) -> int:
        """Print one JSON document on a line of its own, at once; returns 1, for sums."""
        print(to_json(row), flush=True)
        return 1

    def say(self, text: str) -> None:
        """Print a remark on stderr, unless the reader is a script that asked for JSON."""
        if not self.json:
            say(text)


def say(text: str) -> None:
    """Print a remark on stderr, next to the data."""
    print(_printable_lines(text), file=sys.stderr, flush=True)


class PrintableFormatter(logging.Formatter):
    """A formatter for logs on a terminal: nothing in a log line can control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return _printable_lines(super().format(record))


# JSON


def to_json(thing: Any) -> str:
    """Return JSON on one line: times in ISO 8601, durations in seconds, bytes that are not text as `<name>_base64`.

    Control characters (also those of C1), marks of writing direction and lone surrogates are written as JSON escapes,
    so that they cannot control a terminal; a parser reads the same value.
    """
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(_plain(thing), ensure_ascii=encoding != "utf8")
    return text if text.isprintable() else _BEYOND_ASCII.sub(_escaped, text)


_BEYOND_ASCII = re.compile(r"[^ -~]")  # json.dumps has escaped what comes before the space


def _escaped(found: re.Match[str]) -> str:
    one = found[0]
    if one.isprintable():
        return one
    return "\\u007f" if one == "\x7f" else json.dumps(one)[1:-1]


def to_dict(thing: Any) -> dict[str, Any]:
    """Return a mapping or a dataclass as a dict."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return dict(thing)


def _plain(thing: Any) -> Any:
    if isinstance(thing, bytes):
        text = decoded(thing)
        return dict([_named("", thing)]) if text is None else text
    if isinstance(thing, Mapping) or dataclasses.is_dataclass(thing):
        return dict(_named(str(name), value) for name, value in to_dict(thing).items())
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
    if isinstance(value, bytes) and decoded(value) is None:
        return f"{name}_base64".lstrip("_"), base64.b64encode(value).decode()
    return name, _plain(value)


# Text


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


# Tables


def cell(value: Any) -> str:
    """Return a value as people read it."""
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


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _is_number(value: Any) -> bool:
    """Whether a value is aligned to the right; an unknown one is too."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _draw(heads: Sequence[str] | None, rows: Sequence[Sequence[Any]], title: str | None) -> None:
    """Print rows under their headings: drawn by rich in a terminal, as plain columns elsewhere."""
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    if sys.stdout.isatty():
        if heads is not None and _least_width(heads, cells) > shutil.get_terminal_size().columns:
            _draw_one_below_another(heads, cells)
        else:
            _draw_with_rich(heads, cells, numeric, title)
    else:
        _draw_plain(heads, cells, numeric)


def _draw_plain(heads: Sequence[str] | None, rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    """Columns for grep and awk: two spaces between them, one row a line, however long."""
    lines = [*([heads] if heads else []), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))] if lines else []
    for line in lines:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(padded).rstrip())
    sys.stdout.flush()


_READABLE = 20  # a longer cell can be folded into lines of this width


def _least_width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How wide a terminal must be for a table in which no word is broken and no cell is a narrow column of letters."""
    widths = (
        max(*map(len, head.split(" ")), *(min(len(row[place]), _READABLE) for row in rows))
        for place, head in enumerate(heads)
    )
    return sum(width + 3 for width in widths) + 1


def _draw_one_below_another(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """For a narrow terminal: a line for each field, and an empty line between two rows."""
    widest = max(map(len, heads))
    for number, row in enumerate(rows):
        print("\n" * (number > 0), end="")
        for head, text in zip(heads, row, strict=True):
            print(f"{head.ljust(widest)}  {text}")
    sys.stdout.flush()


def _draw_with_rich(
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
        table.add_row(*map(Text, row))  # Text, because [brackets] in a payload are not markup
    Console().print(table)
