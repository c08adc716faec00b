"""rmq redrive: publishes dead letters or failed messages again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.message_view import Matches, MessageView, Where, matches_for
from redis_message_queue.cli.output import Output, say
from redis_message_queue.values.messages import MessageRecord

_ID = re.compile(r"[0-9a-f]{32}")
_SHOWN_ROWS = 100  # in the table of a dry run; JSON has all


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveOptions:
    """Which messages of which list to redrive."""

    source: Annotated[Literal["dead_letters", "failed"], typer.Option("--from", help="The list to redrive.")] = (
        "dead_letters"
    )
    where: Where = None
    ids: Annotated[
        list[str] | None, typer.Option("--ids", metavar="ID,...", help="Only messages with these ids. Can be repeated.")
    ] = None
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="At most this many, the oldest first.")
    ] = None
    respect_deduplication: Annotated[
        bool,
        typer.Option(
            "--respect-deduplication",
            help="Leave out messages whose content was published again, in a queue that deduplicates by content.",
        ),
    ] = False


def redrive(
    queue: QueueChoice,
    output: Output,
    view: MessageView,
    chosen: RedriveOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which messages would be redriven; change nothing.")
    ] = False,
) -> ExitStatus | None:
    """Publish dead letters again, each with a new id and a delivery count of 0.

    With --from failed, the messages of the failed list are published again instead.

    A condition can use payload, id, tenant, delivery_count, published_at, claimed_at, finished_at, reason, error_type,
    error, traceback, replay_of, headers, and json, which is the parsed payload:

    --where "tenant == 'acme' and 'timeout' in error"

    --where "json['customer']['country'] in ['AT', 'DE'] and finished_at >= '2030-01-31T12:00'"

    You can write and, or, not, comparisons, in, is None, lists, and .lower(), .startswith() and .endswith() of text.
    A value that is not known is None, which equals only None and is neither more nor less than anything. Times without
    a zone are UTC. A condition is never run as Python.

    The exit status is 1 if the list does not have one of the --ids.
    """
    selection = _Selection(matches_for(chosen.where), _checked_ids(chosen.ids))
    shown: list[MessageRecord] = []

    def selects(record: MessageRecord) -> bool:
        if has := selection.has(record):
            if dry_run and output.json:
                output.line(view.row(record))
            elif dry_run and len(shown) < _SHOWN_ROWS:
                shown.append(record)
        return has

    options = {"deduplication": True} if chosen.respect_deduplication else {}
    with queue.open(text=True, **options) as opened:
        summary = (opened.redrive_failed if chosen.source == "failed" else opened.redrive_dead_letters)(
            max_messages=chosen.limit or len(selection.ids) or None,
            where=selects,
            dry_run=dry_run,
            respect_deduplication=chosen.respect_deduplication,
        )
    if not dry_run:
        output.document(summary)
    elif not output.json:
        view.show(output, shown, title=f"{queue.name}: would be redriven", empty="no message matches")
        more = f"and {summary.matched - _SHOWN_ROWS:,} more; " if summary.matched > _SHOWN_ROWS else ""
        say(f"{more}{summary.matched:,} would be redriven; nothing was changed")
    return selection.report(
        "failed messages" if chosen.source == "failed" else "dead letters", complete=chosen.limit is None
    )


class _Selection:
    """The messages that the user has chosen by a condition and by ids, and the ids that were not met."""

    def __init__(self, matches: Matches | None, ids: Sequence[str]) -> None:
        self._matches, self.ids, self._missing = matches, ids, dict.fromkeys(ids)

    def has(self, record: MessageRecord) -> bool:
        if (self.ids and record.id not in self.ids) or not (self._matches is None or self._matches(record)):
            return False
        self._missing.pop(record.id or "", None)
        return True

    def report(self, messages: str, *, complete: bool) -> ExitStatus | None:
        """Say what could not be compared, and which ids were not there if the list was searched completely."""
        if self._matches is not None:
            self._matches.say_unlike()
        if not self._missing or not complete:
            return None
        say(f"rmq redrive: not among the {messages}, or excluded by --where: {', '.join(self._missing)}")
        return ExitStatus.FAILED


def _checked_ids(given: Sequence[str] | None) -> list[str]:
    """Each id once, in the order in which they were given."""
    ids = [one.strip().lower() for text in given or () for one in text.split(",")]
    for one in ids:
        if not _ID.fullmatch(one):
            raise typer.BadParameter(
                f"{one!r} is not an id: an id has 32 hexadecimal digits, as `rmq records` shows it", param_hint="--ids"
            )
    return list(dict.fromkeys(ids))
