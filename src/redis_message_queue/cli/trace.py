"""rmq trace: the history of one message."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output


def trace(
    queue: QueueChoice,
    output: Output,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the message: 32 hexadecimal digits.", show_default=False)
    ],
    max_entries: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many entries of the journal to read at most.")
    ] = 1_000_000,
) -> ExitStatus | None:
    """Show the history of a message: when it was published, claimed and by whom, retried, acknowledged.

    The queue needs a journal (journal=True), and the history reaches as far back as the journal does. The exit status
    is 1 if the journal tells nothing about the message.
    """
    with queue.open() as opened:
        entries = opened.trace(message_id, max_entries=max_entries)
    rows = (
        {"at": one.at, "event": one.event, "tenant": one.tenant, "consumer": one.consumer, "details": one.details}
        for one in entries
    )
    output.table(
        [row if output.json else row | {"details": _shown(row["details"])} for row in rows],
        empty="the journal tells nothing about this message",
    )
    return None if entries else ExitStatus.FAILED


def _shown(details: object) -> str:
    return ", ".join(f"{name} {value}" for name, value in details.items()) if isinstance(details, dict) else ""
