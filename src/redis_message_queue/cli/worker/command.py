"""rmq worker: a function of the user's for each message, in as many processes as wanted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from redis_message_queue.cli.delivery_options import DeliveryOptions
from redis_message_queue.cli.frame import CommandLine, ExitStatus, Output, QueueChoice

app = CommandLine()


class LogLevel(StrEnum):
    """How much the processes log, to stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaybeQueueChoice(QueueChoice):
    """The same, where the name may be left to a queue object of the user's."""

    name: Annotated[
        str,
        typer.Argument(metavar="QUEUE", help="The name of the queue, unless --queue is given.", show_default=False),
    ] = ""


@app.command()
def worker(
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="package.module:function, plain or async.", show_default=False)
    ],
    queue: MaybeQueueChoice,
    output: Output,
    delivery: DeliveryOptions,
    queue_object: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="OBJECT",
            help="package.module:queue, a queue object or a function that makes one; its own options count then.",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(metavar="N", min=1, max=1_000, help="How many processes.")] = 1,
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, help="Threads in each process; tasks for an async handler.")
    ] = 1,
    prefetch: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000, help="How many messages are claimed in one round trip.")
    ] = 1,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1_000, help="Give the handler lists of up to so many.")
    ] = None,
    batch_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="How long such a list may take to fill.")
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing waits.", show_default=False)
    ] = False,
    payload_bytes: Annotated[
        bool, typer.Option("--bytes", help="Payloads are bytes instead of text.", show_default=False)
    ] = False,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A file that is there while all processes are at work.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a stop waits for handlers before it hurries.",
            show_default="as long as they take",
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much the processes log, to stderr.")] = LogLevel.WARNING,
    tracebacks: Annotated[
        bool,
        typer.Option("--tracebacks", help="Log what a handler raised in full; it may quote payloads."),
    ] = False,
) -> ExitStatus | None:
    """Give each message of a queue to a function of yours, until SIGTERM or Ctrl-C.

    `rmq worker shop.mails:send mails --processes 4` imports `send` from shop/mails.py, in this directory or in
    PYTHONPATH, and calls it with a ReceivedMessage. When it returns the message is acknowledged; when it raises the
    message has failed, see --max-attempts. A process that dies is started again, later each time.

    The first SIGTERM or Ctrl-C lets handlers finish and gives back what was claimed ahead; the exit status is 0 then.
    The same signal again does not wait: what is being handled is delivered again when its lease ends.
    """
    from redis_message_queue.cli.stopping import StopSignals
    from redis_message_queue.cli.worker import reference
    from redis_message_queue.cli.worker.supervisor import Supervisor
    from redis_message_queue.cli.worker.task import Task

    reference.check("HANDLER", handler)
    _check_queue(queue, queue_object, delivery)
    run = {
        "concurrency": concurrency,
        "prefetch": prefetch,
        "batch_size": batch_size,
        "batch_seconds": batch_seconds,
        "until_empty": until_empty,
    }
    task = Task(
        handler=handler,
        queue_object=queue_object,
        queue=queue if queue_object is None else None,
        delivery=delivery,
        run=run,
        payload_bytes=payload_bytes,
        log_level=log_level.value,
        tracebacks=tracebacks,
    )
    with StopSignals() as stop:
        supervisor = Supervisor(
            task,
            processes,
            stop,
            ready_file=ready_file,
            grace_seconds=grace,
            stdout=sys.stderr.fileno() if output.json else None,
        )
        status = supervisor.run()
    if status != ExitStatus.USAGE:
        output.document(supervisor.summary)
    return status


def _check_queue(queue: QueueChoice, queue_object: str | None, delivery: DeliveryOptions) -> None:
    """Before any process starts: the same mistakes would be made in each."""
    from redis_message_queue.cli.worker import reference

    if (queue_object is None) == (not queue.name):
        raise typer.BadParameter("name a QUEUE, or give a queue object by --queue, and only one", param_hint="QUEUE")
    if queue_object is not None:
        reference.check("--queue", queue_object)
        if delivery != DeliveryOptions():
            raise typer.BadParameter(
                "leases, retries and lists are set on the queue object itself, and not beside it", param_hint="--queue"
            )
        return
    with queue.open(**delivery.queue_options()):  # checks the options, and that the server answers
        pass
