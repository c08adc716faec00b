"""rmq worker: calls a function of yours with each message, in as many processes as you want."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from redis_message_queue.cli.common_options import DeliveryOptions, QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output

LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalQueueChoice(QueueChoice):
    """Which queue, unless the user names a queue object instead."""

    name: Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue, unless you pass --queue.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker process needs to know. It goes through a pipe: anybody can read a password in the arguments."""

    handler: str
    queue_object: str | None  # where to import the user's own queue from
    queue: QueueChoice | None  # or which queue to open
    delivery: DeliveryOptions
    run: dict[str, Any]  # the arguments of `queue.run` besides the handler
    payload_bytes: bool
    log_level: str
    tracebacks: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerSettings:
        values = json.loads(text)
        values["queue"] = values["queue"] and QueueChoice(**values["queue"])
        values["delivery"] = DeliveryOptions(**values["delivery"])
        return cls(**values)


def worker(
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="The function: package.module:function, sync or async.")
    ],
    queue: OptionalQueueChoice,
    output: Output,
    delivery: DeliveryOptions,
    queue_object: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="OBJECT",
            help="package.module:queue, a queue object or a function that returns one. Its own options apply.",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(metavar="N", min=1, max=1_000, help="How many processes to run.")] = 1,
    concurrency: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="How many threads each process runs; tasks, if the handler is async."),
    ] = 1,
    prefetch: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000, help="How many messages to claim in one round trip.")
    ] = 1,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1_000, help="Call the handler with lists of up to N messages.")
    ] = None,
    batch_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="How long to wait for a list to fill.")
    ] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when no message is pending.")] = False,
    wait_for_retries: Annotated[
        bool,
        typer.Option(
            "--wait-for-retries", help="With --until-empty: also wait for the next attempts of messages that failed."
        ),
    ] = False,
    payload_bytes: Annotated[bool, typer.Option("--bytes", help="Pass payloads as bytes instead of str.")] = False,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A file that exists while all processes are running.")
    ] = None,
    grace_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a stop waits for handlers before it abandons them.",
            show_default="as long as they take",
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="The level of the log on stderr.")] = "warning",
    tracebacks: Annotated[
        bool,
        typer.Option("--tracebacks", help="Log the traceback of each exception in a handler; it may quote payloads."),
    ] = False,
) -> ExitStatus | None:
    """Call a function of yours with each message of a queue, until SIGTERM or Ctrl-C.

    `rmq worker shop.mails:send mails --processes 4` imports `send` from shop/mails.py, in this directory or in
    PYTHONPATH, and calls it with a ReceivedMessage. If it returns, the message is acknowledged. If it raises, the
    message has failed, see --max-attempts, unless it raises RetryLater, Discard or DeadLetter. A process that dies is
    restarted, after a growing delay.

    The first SIGTERM or Ctrl-C lets the handlers finish, requeues prefetched messages, and ends with exit status 0.
    The same signal again stops at once: messages that are being handled are delivered again when their lease ends.
    """
    from redis_message_queue.cli.stop_signals import StopSignals
    from redis_message_queue.cli.worker.process import check_reference
    from redis_message_queue.cli.worker.supervisor import Supervisor

    check_reference("HANDLER", handler)
    if (queue_object is None) == (not queue.name):
        raise typer.BadParameter("pass either a QUEUE or --queue", param_hint="QUEUE")
    if wait_for_retries and not until_empty:
        raise typer.BadParameter("needs --until-empty", param_hint="--wait-for-retries")
    if queue_object is None:
        with queue.open(**delivery.queue_options()):  # check the options and the server before any process starts
            pass
    else:
        check_reference("--queue", queue_object)
        if delivery != DeliveryOptions():
            raise typer.BadParameter("set leases, retries and lists on the queue object itself", param_hint="--queue")
    settings = WorkerSettings(
        handler=handler,
        queue_object=queue_object,
        queue=queue if queue_object is None else None,
        delivery=delivery,
        run={
            "concurrency": concurrency,
            "prefetch": prefetch,
            "batch_size": batch_size,
            "batch_seconds": batch_seconds,
            "until_empty": until_empty,
            "wait_for_retries": wait_for_retries,
        },
        payload_bytes=payload_bytes,
        log_level=log_level,
        tracebacks=tracebacks,
    )
    with StopSignals() as stop:
        supervisor = Supervisor(
            settings,
            processes,
            stop,
            ready_file=ready_file,
            grace_seconds=grace_seconds,
            stdout=sys.stderr.fileno() if output.json else None,
        )
        status = supervisor.run()
    if status != ExitStatus.USAGE:
        output.document(supervisor.summary)
    return status
