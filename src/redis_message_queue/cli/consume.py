"""rmq consume: messages out of a queue, printed or given to a command."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_message_queue.cli.delivery_options import DeliveryOptions
from redis_message_queue.cli.frame import CommandLine, ExitStatus, Output, QueueChoice

app = CommandLine()


@app.command()
def consume(
    queue: QueueChoice,
    output: Output,
    delivery: DeliveryOptions,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after so many messages.")
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for each message before it ends.")
    ] = 0.0,
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Wait for more until Ctrl-C or SIGTERM.", show_default=False)
    ] = False,
    execute: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Give each message to this shell command instead of printing it, on its stdin.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, max=1_000, help="How many are claimed and printed at once.")
    ] = 100,
) -> ExitStatus | None:
    """Take messages out of a queue and print them, until it is empty.

    A payload is printed as it is, on a line of its own; with --json each line is an object with the payload and what
    is known of the message. It is acknowledged when it has been printed; if that fails it goes back to the queue.

    With --exec each message is the stdin of a command that `sh` runs. Exit status 0 acknowledges it, any other fails
    it; see --max-attempts. The command finds RMQ_QUEUE, RMQ_MESSAGE_ID, RMQ_DELIVERY_COUNT, RMQ_PUBLISHED_AT and, if it
    has one, RMQ_TENANT in its environment. Ctrl-C or SIGTERM lets the command at hand finish; the same signal again
    ends it and gives the message back.

    The exit status is 1 if no message came, or if one failed.
    """
    from redis_message_queue.cli.consuming import Consuming, Limits, Printer
    from redis_message_queue.cli.executing import Executor
    from redis_message_queue.cli.stopping import StopSignals

    if follow and wait:
        raise typer.BadParameter("it waits for ever anyway", param_hint="--wait with --follow")
    limits = Limits(count=count, wait_seconds=None if follow else wait, batch=1 if execute is not None else batch)
    with StopSignals() as stop, queue.open(**delivery.queue_options(), interrupt=stop) as opened:
        taker = Printer(queue.name, output) if execute is None else Executor(queue.name, execute, output, stop)
        return Consuming(opened, limits, stop, taker).run()
