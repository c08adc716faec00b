"""rmq worker: calls a function of yours with each message, in as many processes as you want."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from redis_message_queue.cli.common_options import (
    DeadLetterQueue,
    DeliveryOptions,
    HashTag,
    KeySeparator,
    QueueChoice,
    ServerChoice,
)
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.log_format import LogFormat
from redis_message_queue.cli.output import Output
from redis_message_queue.stored.bounds import MAX_MESSAGES

LogLevel = Literal["debug", "info", "warning", "error"]
_WATCH = "Health and logs"
_WEIGHTED = re.compile(r"(.+)=([0-9]+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNames(ServerChoice):
    """Return the queues with their weights; none if the user names a queue object instead."""

    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE[=WEIGHT]",
            help="The queues, unless you pass --queue. A queue of weight 3 gets three times the handlers of one of 1.",
        ),
    ] = None
    key_separator: KeySeparator = "::"
    hash_tag: HashTag = None
    dead_letter_queue: DeadLetterQueue = None

    def choices(self) -> dict[str, tuple[QueueChoice, int]]:
        """Return the queues by name, each with its weight."""
        chosen: dict[str, tuple[QueueChoice, int]] = {}
        for given in self.names or ():
            weighted = _WEIGHTED.fullmatch(given)
            name, weight = (given, 1) if weighted is None else (weighted[1], int(weighted[2]))
            if name in chosen:
                raise typer.BadParameter(f"{name!r} is named twice", param_hint="QUEUE")
            if not 1 <= weight <= 1_000:
                raise typer.BadParameter(f"the weight in {given!r} must be from 1 to 1,000", param_hint="QUEUE")
            choice = QueueChoice(
                name=name,
                url=self.url,
                key_separator=self.key_separator,
                hash_tag=self.hash_tag,
                dead_letter_queue=self.dead_letter_queue,
            )
            chosen[name] = (choice, weight)
        if self.dead_letter_queue is not None and len(chosen) > 1:
            raise typer.BadParameter(
                "works with one QUEUE: queues cannot share a list", param_hint="--dead-letter-queue"
            )
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker process. They go through a pipe: anybody can read a password in the arguments."""

    handler: str
    queue_object: str | None  # where to import the user's own queue from
    queues: list[QueueChoice]  # or which queues to open
    weights: list[int]
    address: str
    delivery: DeliveryOptions
    run: dict[str, Any]  # the arguments of `run_queues` besides the queues and the handler
    payload_bytes: bool
    log_level: str
    log_format: LogFormat
    tracebacks: bool
    is_watched: bool  # whether anybody asks for its health
    reload: bool
    ready_file: str | None
    supervisor_pid: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerSettings:
        values = json.loads(text)
        values["queues"] = [QueueChoice(**one) for one in values["queues"]]
        values["delivery"] = DeliveryOptions(**values["delivery"])
        return cls(**values)


def worker(
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="The function: package.module:function, sync or async.")
    ],
    queues: QueueNames,
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
        typer.Option(
            metavar="N",
            min=1,
            help="How many handlers run at the same time in each process, for all queues: threads, or tasks of an "
            "async handler.",
        ),
    ] = 1,
    prefetch: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_MESSAGES, help="How many messages to claim in one round trip.")
    ] = 1,
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=MAX_MESSAGES, help="Call the handler with lists of up to N messages."),
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
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: restart the processes when a file of your modules changes."),
    ] = False,
    grace_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a stop waits for handlers before it abandons them.",
            show_default="as long as they take",
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65_535,
            help="Serve /healthz, /readyz and /metrics on this port; 0 chooses a free one.",
            rich_help_panel=_WATCH,
        ),
    ] = None,
    health_host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="The address to serve them at; 0.0.0.0 is every address.", rich_help_panel=_WATCH
        ),
    ] = "127.0.0.1",
    health_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="/healthz fails when a loop has not turned or a process has not reached Redis for so long.",
            rich_help_panel=_WATCH,
        ),
    ] = 60.0,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A file that exists while all processes are running and reach Redis.",
            rich_help_panel=_WATCH,
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(help="The level of the log on stderr.", rich_help_panel=_WATCH)
    ] = "warning",
    log_format: Annotated[
        LogFormat, typer.Option(help="Lines of text, or a JSON object a line.", rich_help_panel=_WATCH)
    ] = "text",
    tracebacks: Annotated[
        bool | None,
        typer.Option(
            "--tracebacks/--no-tracebacks",
            help="Log the traceback of each exception in a handler; it may quote payloads.",
            show_default="on a terminal",
            rich_help_panel=_WATCH,
        ),
    ] = None,
) -> ExitStatus | None:
    """Call a function of yours with each message of one or several queues, until SIGTERM or Ctrl-C.

    `rmq worker shop.mails:send mails --processes 4` imports `send` from shop/mails.py, in this directory or in
    PYTHONPATH, and calls it with a ReceivedMessage. If it returns, the message is acknowledged. If it raises, the
    message has failed, see --max-attempts, unless it raises RetryLater, Discard or DeadLetter. A process that dies is
    restarted, after a growing delay.

    `rmq worker shop.mails:send urgent=3 bulk` serves two queues. While both have messages, three of four handlers that
    start are for `urgent`. A queue without messages leaves its share to the others.

    The first SIGTERM or Ctrl-C lets the handlers finish, requeues prefetched messages, and ends with exit status 0.
    The same signal again stops at once: messages that are being handled are delivered again when their lease ends.

    With --until-empty, the exit status is 0 if every message was handled, discarded or waits for its next attempt. It
    is 1 if a message failed for good or became a dead letter, or if a process ended in the middle of a message, because
    its handler called sys.exit, raised KeyboardInterrupt or crashed: then that message is still in flight.
    """
    from redis_message_queue.cli.stop_signals import StopSignals
    from redis_message_queue.cli.worker.supervisor import Supervisor
    from redis_message_queue.cli.worker.worker_process import check_reference

    check_reference("HANDLER", handler)
    choices = queues.choices()
    if (queue_object is None) == (not choices):
        raise typer.BadParameter("pass either a QUEUE or --queue", param_hint="QUEUE")
    if wait_for_retries and not until_empty:
        raise typer.BadParameter("needs --until-empty", param_hint="--wait-for-retries")
    if reload and until_empty:
        raise typer.BadParameter("does not go together with --until-empty", param_hint="--reload")
    if queue_object is None:
        for choice, _ in choices.values():  # check the options and the server before any process starts
            with choice.open(**delivery.queue_options()):
                pass
    else:
        check_reference("--queue", queue_object)
        if delivery != DeliveryOptions():
            raise typer.BadParameter("set leases, retries and lists on the queue object itself", param_hint="--queue")
    settings = WorkerSettings(
        handler=handler,
        queue_object=queue_object,
        queues=[choice for choice, _ in choices.values()],
        weights=[weight for _, weight in choices.values()],
        address=queues.shown_url if queue_object is None else "",
        delivery=delivery,
        run={
            "concurrency": concurrency,
            "prefetch": prefetch,
            "batch_size": batch_size,
            "batch_seconds": batch_seconds,
            "until_empty": until_empty,
            "wait_for_retries": wait_for_retries,
            "renew_leases": delivery.heartbeat_interval_seconds != 0,
        },
        payload_bytes=payload_bytes,
        log_level=log_level,
        log_format=log_format,
        tracebacks=sys.stderr.isatty() if tracebacks is None else tracebacks,
        is_watched=health_port is not None or ready_file is not None,
        reload=reload,
        ready_file=None if ready_file is None else str(ready_file.absolute()),
    )
    with StopSignals() as stop:
        supervisor = Supervisor(
            settings,
            processes,
            stop,
            grace_seconds=grace_seconds,
            health_at=None if health_port is None else (health_host, health_port),
            health_seconds=health_seconds,
            quiet=output.json,
            stdout=sys.stderr.fileno() if output.json else None,
        )
        status = supervisor.run()
    if status != ExitStatus.USAGE:
        _print_totals(output, supervisor.totals)
    return status


def _print_totals(output: Output, totals: dict[str, dict[str, int]]) -> None:
    """Print what was done: of each queue if there are several, and in all."""
    in_all = {name: sum(one[name] for one in totals.values()) for name in next(iter(totals.values()))}
    if len(totals) == 1:
        output.document(in_all)
    elif output.json:
        output.document(in_all | {"queues": totals})
    else:
        rows = [{"queue": queue} | counts for queue, counts in totals.items()]
        output.table([*rows, {"queue": "in all"} | in_all])
