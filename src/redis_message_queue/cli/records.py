"""rmq records: what is known of messages that have left a queue."""

from typing import Annotated

import typer

from redis_message_queue.cli.frame import CommandLine, Output, QueueChoice
from redis_message_queue.cli.message_view import MessageView
from redis_message_queue.protocol.operator import Listed

app = CommandLine()


@app.command()
def records(
    queue: QueueChoice,
    output: Output,
    view: MessageView,
    source: Annotated[Listed, typer.Argument(help="Which list.", show_default=True)] = "dead_letters",
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many records at the most.")
    ] = 20,
) -> None:
    """Show what became of messages that were handled, failed or delivered too often, the newest first.

    Each record has what is known: id, tenant, deliveries, times, the reason, the error, and the payload. With --json
    each line is a record.
    """
    with queue.open() as opened:
        found = opened.records(source, max_records=limit)
    title = f"{queue.name}: {source.replace('_', ' ')}"
    view.show(output, found, title=title, empty=f"no {source.replace('_', ' ')}")
