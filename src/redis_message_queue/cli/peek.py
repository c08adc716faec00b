"""rmq peek: the next messages of a queue, untouched."""

from typing import Annotated, Literal

import typer

from redis_message_queue.cli.frame import CommandLine, Output, QueueChoice
from redis_message_queue.cli.message_view import MessageView

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
) -> None:
    """Look at the messages that wait or are being handled, without touching them.

    Pending messages come in the order of their delivery, those in processing by the end of their lease, and delayed
    ones by when they are due. With --json each line is a message with all that is known of it.
    """
    if tenant is not None and source != "pending":
        raise typer.BadParameter(f"goes with pending, not with {source}", param_hint="--tenant")
    with queue.open() as opened:
        found = opened.peek(limit, source=source, tenant=tenant)
    view.show(output, found, title=f"{queue.name}: {source}", empty=f"no message is {_adjective(source)}")


def _adjective(source: str) -> str:
    return "in processing" if source == "processing" else source
