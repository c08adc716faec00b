"""rmq stats: how many messages are where, once or again and again."""

import contextlib
import dataclasses
import sys
from typing import Annotated

import typer

from redis_message_queue.cli.frame import CommandLine, ExitStatus, Output, QueueChoice

app = CommandLine()

_EVERY_SECONDS = 2.0


@app.command()
def stats(
    queue: QueueChoice,
    output: Output,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="Further queues.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again.", show_default=False)] = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=86_400,
            help="How long between two looks; means --watch.",
            show_default=f"{_EVERY_SECONDS:g}",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", min=1, help="End after so many looks; means --watch."),
    ] = None,
    oldest: Annotated[
        bool,
        typer.Option(
            "--oldest/--no-oldest",
            help="Find the oldest waiting message, which takes a look at each tenant: leave it out with very many.",
            show_default=True,
        ),
    ] = True,
) -> ExitStatus | None:
    """Show how many messages are where, and how long the oldest has waited.

    With --watch the table lives: counts, how fast they change, the age of the oldest message that waits, and a small
    curve of the last looks. Without a terminal, or with --json, each look is a line of JSON for each queue, with
    the changes since the look before under `per_second`. Ctrl-C ends it.
    """
    from redis_message_queue.cli.stats.look import Watch, look
    from redis_message_queue.cli.stopping import StopSignals

    names = list(dict.fromkeys([queue.name, *(more or [])]))
    if queue.dead_letter_queue is not None and len(names) > 1:
        raise typer.BadParameter("is the list of one queue; ask for that queue alone", param_hint="--dead-letter-queue")
    with contextlib.ExitStack() as stack:
        queues = {name: stack.enter_context(dataclasses.replace(queue, name=name).open()) for name in names}
        if not watch and every is None and count is None:
            output.table([{"queue": name} | one for name, one in look(queues, oldest).items()])
            return None
        stop = stack.enter_context(StopSignals())
        watching = Watch(queues, every or _EVERY_SECONDS, count, stop, oldest=oldest)
        if output.json or not sys.stdout.isatty():
            for row in watching.rows():
                output.line(row)
        else:
            from redis_message_queue.cli.stats.screen import show

            show(watching)
    return stop.status if count is not None and stop.is_interrupted() else None  # a watch without end is done then
