"""Messages as operators see them: a table with shortened payloads, or JSON with whole ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from redis_message_queue.cli.as_json import as_facts
from redis_message_queue.cli.output import Output
from redis_message_queue.cli.table import printable
from redis_message_queue.messages import MessageRecord

_SHORT = 60  # characters of a payload or an error in a table
_ALWAYS = ("id", "payload")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """How messages are shown; as a parameter of a command it is `--payload/--no-payload`."""

    payload: Annotated[
        bool,
        typer.Option("--payload/--no-payload", help="Whether payloads are shown; tables shorten them, JSON does not."),
    ] = True

    def row(self, record: MessageRecord) -> dict[str, Any]:
        """Everything that is known, with or without the payload."""
        facts = as_facts(record)
        if not self.payload:
            del facts["payload"]
        return facts

    def show(self, output: Output, records: Iterable[MessageRecord], *, title: str, empty: str) -> int:
        """Returns how many there were. A table leaves out what is known of none of them."""
        rows = [self.row(record) for record in records]
        if output.json:
            return output.table(rows)
        known = {name for row in rows for name, value in row.items() if value is not None}
        columns = [name for name in _order(rows) if name in known or name in _ALWAYS]
        return output.table(map(_shortened, rows), columns=columns, title=title, empty=empty)


def _order(rows: list[dict[str, Any]]) -> list[str]:
    """As the record has them, the payload last: it is the widest."""
    return sorted(rows[0], key=lambda name: name == "payload") if rows else []


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    return {name: shortened(value) if isinstance(value, str | bytes) else value for name, value in row.items()}


def shortened(value: str | bytes) -> str:
    """What a cell has room for, without control characters; base64 keeps its beginning too."""
    beginning = value[: 4 * _SHORT]  # no character takes more bytes; a payload may have megabytes
    if isinstance(beginning, bytes) and isinstance(value, bytes) and len(value) > len(beginning):
        beginning = _whole_characters(beginning)
    shown = printable(beginning)
    return shown if len(shown) <= _SHORT and len(beginning) == len(value) else shown[: _SHORT - 1] + "…"


def _whole_characters(cut: bytes) -> bytes:
    """Without the first bytes of a character that the cut has parted."""
    for missing in range(1, 4):
        if len(cut) >= missing and cut[-missing] & 0xC0 != 0x80:
            return cut[:-missing] if cut[-missing] >= 0xC0 else cut
    return cut
