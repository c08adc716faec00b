"""Finds messages by a condition and shows them: a table with shortened payloads, or JSON with whole ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.output import Output, say, to_dict
from redis_message_queue.values.messages import MessageRecord
from redis_message_queue.values.plain_values import printable

if TYPE_CHECKING:
    from redis_message_queue.protocol.operate.condition import Condition

Where = Annotated[
    str | None, typer.Option("--where", metavar="CONDITION", help="Only messages that match this condition.")
]
SEARCHED_MESSAGES = 10_000  # at most: each step of a search is one request to the server
_FIRST_STEP, _GROWTH = 200, 4
_CELL_CHARACTERS = 60  # of a payload or an error in a table
_ALWAYS_SHOWN = ("id", "payload")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """How messages are shown; as a parameter of a command it is `--payload/--no-payload`."""

    payload: Annotated[
        bool, typer.Option("--payload/--no-payload", help="Show payloads. Tables shorten them, JSON does not.")
    ] = True

    def row(self, record: MessageRecord) -> dict[str, Any]:
        """Return everything that is known of a message, with or without its payload."""
        row = to_dict(record)
        if not self.payload:
            del row["payload"]
        return row

    def show(self, output: Output, records: Iterable[MessageRecord], *, title: str, empty: str) -> None:
        """Print messages. A table leaves out columns that are unknown or False for all, and has the payload last.

        The traceback of a failed message does not fit into a table. It stands below if there is only this message.
        """
        rows = [self.row(record) for record in records]
        if output.json:
            output.table(rows)
            return
        known = {name for row in rows for name, value in row.items() if value is not None and value is not False}
        known.discard("traceback")
        columns = [name for name in (rows[0] if rows else ()) if name in known or name in _ALWAYS_SHOWN]
        columns.sort(key=lambda name: name == "payload")
        shown = [
            {name: shortened(value) if isinstance(value, str | bytes) else value for name, value in row.items()}
            for row in rows
        ]
        output.table(shown, columns=columns, title=title, empty=empty)
        if len(rows) == 1 and (traceback := rows[0].get("traceback")):
            print("\n" + printable(traceback, keep="\n"))


class Matches:
    """A condition of `--where`; it counts the values that it met and could not compare."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        self.unlike: Counter[tuple[str, str]] = Counter()

    def __call__(self, record: MessageRecord) -> bool:
        if self._condition(record):
            return True
        if (found := self._condition.unlike(record)) is not None:
            self.unlike[found] += 1
        return False

    def say_unlike(self) -> None:
        """Say which values could not be compared: their messages do not match, and perhaps should."""
        for (source, kind), count in self.unlike.items():
            values = (
                f"1 value of {source} was {kind} and" if count == 1 else f"{count:,} values of {source} were {kind} and"
            )
            say(f"{values} could not be compared, so the condition is false for {'it' if count == 1 else 'them'}")


def matches_for(where: str | None, fields: Mapping[str, Any] | None = None) -> Matches | None:
    """Return what `--where` asks for; None without it."""
    from redis_message_queue.protocol.operate.condition import RECORD, condition

    return None if where is None else Matches(condition(where, fields or RECORD))


def search(read: Callable[[int], list[MessageRecord]], matches: Matches | None, limit: int) -> list[MessageRecord]:
    """Return the first messages that match a condition; ``read(n)`` returns the first n of all."""
    if matches is None:
        return read(limit)
    depth = min(max(limit, _FIRST_STEP), SEARCHED_MESSAGES)
    while True:
        seen = read(depth)
        matches.unlike.clear()
        found = [record for record in seen if matches(record)][:limit]
        if len(found) == limit or len(seen) < depth or depth == SEARCHED_MESSAGES:
            matches.say_unlike()
        if len(found) == limit or len(seen) < depth:
            return found
        if depth == SEARCHED_MESSAGES:
            say(f"searched the first {SEARCHED_MESSAGES:,} messages only; there may be more")
            return found
        depth = min(depth * _GROWTH, SEARCHED_MESSAGES)


def shortened(value: str | bytes) -> str:
    """Return the beginning of a text that fits into a cell, without control characters."""
    beginning = value[: 4 * _CELL_CHARACTERS]  # a character has at most four bytes; a payload may have megabytes
    if isinstance(beginning, bytes) and isinstance(value, bytes) and len(value) > len(beginning):
        beginning = _whole_characters(beginning)
    shown = printable(beginning)
    fits = len(shown) <= _CELL_CHARACTERS and len(beginning) == len(value)
    return shown if fits else shown[: _CELL_CHARACTERS - 1] + "…"


def _whole_characters(cut: bytes) -> bytes:
    """Drop the first bytes of a UTF-8 character that the cut has split."""
    for missing in range(1, 4):
        if len(cut) >= missing and cut[-missing] & 0xC0 != 0x80:
            return cut[:-missing] if cut[-missing] >= 0xC0 else cut
    return cut
