"""rmq records: what is known of messages that have left a queue."""

from typing import Annotated

import typer

from redis_message_queue.cli.frame import CommandLine, Output, QueueChoice
from redis_message_queue.cli.message_view import MessageView
from redis_message_queue.cli.where import Where, search
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
    where: Where = None,
) -> None:
    """Show what became of messages that were handled, failed or delivered too often, the newest first.

    Each record has what is known: id, tenant, deliveries, times, the reason, the error, and the payload. With --json
    each line is a record. A condition is written as for `rmq redrive`; it is looked for among the newest 10,000.
    """
    from redis_message_queue.condition import condition

    holds = None if where is None else condition(where)
    with queue.open() as opened:
        found = search(lambda count: opened.records(source, max_records=count), holds, limit)
    title = f"{queue.name}: {source.replace('_', ' ')}"
    such = "no" if where is None else "no such"
    view.show(output, found, title=title, empty=f"{such} {source.replace('_', ' ')}")
