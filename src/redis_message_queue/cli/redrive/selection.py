"""Which dead letters or failed messages are wanted, and what is told of them on the way."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

from redis_message_queue.cli.message_view import MessageView
from redis_message_queue.cli.output import Output
from redis_message_queue.condition import condition
from redis_message_queue.messages import MessageRecord, RedriveSummary

_ID = re.compile(r"[0-9a-f]{32}")
_SHOWN = 100  # rows of a table; JSON has all


def checked_ids(given: Sequence[str] | None) -> list[str]:
    """Each once, in the order in which they were given."""
    ids = [one.strip().lower() for text in given or () for one in text.split(",")]
    for one in ids:
        if not _ID.fullmatch(one):
            raise typer.BadParameter(
                f"{one!r} is no id: 32 hexadecimal digits, as `rmq records` shows them", param_hint="--ids"
            )
    return list(dict.fromkeys(ids))


class Selection:
    """Asked for each dead letter, the oldest first; in a dry run it shows those that it wants."""

    def __init__(self, where: str | None, ids: Sequence[str], output: Output, view: MessageView, *, show: bool) -> None:
        self._holds = None if where is None else condition(where)
        self._missing = dict.fromkeys(ids)
        self._wanted = frozenset(ids)
        self._output, self._view, self._show = output, view, show
        self._rows: list[MessageRecord] = []

    def __call__(self, record: MessageRecord) -> bool:
        if self._wanted and record.id not in self._wanted:
            return False
        if self._holds is not None and not self._holds(record):
            return False
        self._missing.pop(record.id or "", None)
        if self._show:
            self._note(record)
        return True

    def _note(self, record: MessageRecord) -> None:
        if self._output.json:
            self._output.line(self._view.row(record))
        elif len(self._rows) < _SHOWN:
            self._rows.append(record)

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids that were asked for and not met."""
        return tuple(self._missing)

    def finish(self, summary: RedriveSummary) -> None:
        """Tell how it ended."""
        if not self._show:
            return self._output.document(summary)
        if not self._output.json:
            self._view.show(self._output, self._rows, title="would be redriven", empty="no message would go")
        if summary.matched > _SHOWN:
            self._output.say(f"and {summary.matched - _SHOWN:,} more")
        return self._output.say(f"{summary.matched:,} would go; nothing was changed")
