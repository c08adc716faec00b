"""What a command shows: data on stdout, as a table or as JSON; words about it on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from redis_message_queue.cli.as_json import as_facts, to_json
from redis_message_queue.cli.table import draw, printable_lines


def say(text: str) -> None:
    """One line for the person who watches, beside the data."""
    print(printable_lines(text), file=sys.stderr, flush=True)


class PrintableFormatter(logging.Formatter):
    """For logs that a person may see on a terminal: nothing in them is obeyed there."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a command shows its data; as a parameter of a command it is the option `--json`."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", show_default=False)] = False

    def document(self, facts: Any, *, title: str | None = None) -> None:
        """One thing (a mapping or a dataclass): a JSON object, or a line for each fact."""
        if self.json:
            self.line(facts)
        else:
            draw(None, [(_heading(name), value) for name, value in as_facts(facts).items()], title)

    def table(
        self,
        rows: Iterable[Any],
        *,
        columns: Sequence[str] | None = None,
        title: str | None = None,
        empty: str = "nothing",
    ) -> int:
        """Many things of a kind (mappings or dataclasses): a JSON object a line, or a table; returns how many.

        ``columns`` chooses and orders what the table shows; JSON has everything. ``empty`` goes to stderr.
        """
        if self.json:
            return sum(self.line(row) for row in rows)
        facts = [as_facts(row) for row in rows]
        if not facts:
            say(empty)
            return 0
        shown = list(columns or facts[0])
        draw([_heading(name) for name in shown], [[row.get(name) for name in shown] for row in facts], title)
        return len(facts)

    def line(self, row: Any) -> int:
        """One JSON document on a line of its own, sent at once; returns 1, for sums."""
        print(to_json(row), flush=True)
        return 1

    def say(self, text: str) -> None:
        """What a person wants to know beside the data; scripts that asked for JSON are spared."""
        if not self.json:
            say(text)


def _heading(name: str) -> str:
    return name.replace("_", " ")
