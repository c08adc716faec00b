"""rmq peek: the next messages of a queue, untouched."""

from typing import Annotated, Literal

import typer

from redis_message_queue.cli.frame import CommandLine, Output, QueueChoice
from redis_message_queue.cli.message_view import MessageView
from redis_message_queue.cli.where import Where, search

app = CommandLine()


@app.command()
def peek(
    queue: QueueChoice,
    output: Output,
    view: MessageView,
    source: Annotated[
        Literal["pending", "processing", "delayed"], typer.Argument(help="Where to look.", show_default=True)
    ] = "pending",
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many messages at the most.")
    ] = 20,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the line of this tenant.", show_default=False)
    ] = None,
    where: Where = None,
) -> None:
    """Look at the messages that wait or are being handled, without touching them.

    Pending messages come in the order of their delivery, those in processing by the end of their lease, and delayed
    ones by when they are due. With --json each line is a message with all that is known of it. A condition is written
    as for `rmq redrive`, and may speak of due_at too; it is looked for among the first 10,000 messages.
    """
    from redis_message_queue.condition import WAITING, condition

    if tenant is not None and source != "pending":
        raise typer.BadParameter(f"goes with pending, not with {source}", param_hint="--tenant")
    holds = None if where is None else condition(where, WAITING)
    with queue.open() as opened:
        found = search(lambda count: opened.peek(count, source=source, tenant=tenant), holds, limit)
    view.show(output, found, title=f"{queue.name}: {source}", empty=_nothing(source, where))


def _nothing(source: str, where: str | None) -> str:
    such = "no message" if where is None else "no such message"
    return f"{such} is {'in processing' if source == 'processing' else source}"
