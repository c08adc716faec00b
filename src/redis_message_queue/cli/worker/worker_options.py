"""The parameters of `rmq worker`, and the settings that its processes get from them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
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
from redis_message_queue.cli.log_format import LogFormat
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.values.errors import ConfigurationError

LogLevel = Literal["debug", "info", "warning", "error"]
_WATCH, _CLAIMS, _PROCESSES = "Health and logs", "Claiming messages", "Starting and stopping"  # the second page of help
_WEIGHTED = re.compile(r"(.+)=([0-9]+)", re.DOTALL)
_WITH_HANDLER = re.compile(r"(.+?)=([^\W\d][\w.]*:[\w.]+)(?:=([0-9]+))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """A queue with its handler and its weight; without a choice, the handler's own or that of `--queue`."""

    handler: str
    choice: QueueChoice | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedQueues(ServerChoice):
    """Which queues to serve: all with one handler, or each with its own."""

    handler: Annotated[
        str,
        typer.Argument(
            metavar="HANDLER",
            help="The function: package.module:function, sync or async; or tasks: package.module:tasks. "
            "QUEUE=HANDLER or QUEUE=HANDLER=WEIGHT, once or more, gives each queue a handler of its own.",
        ),
    ]
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

    def served(self) -> list[ServedQueue]:
        """Return the queues that are named, or the handler alone if none is."""
        pairs = [_WITH_HANDLER.fullmatch(one) for one in (self.handler, *(self.names or ()))]
        if not any(pairs):
            check_reference("HANDLER", self.handler)
            weighted = [(one, self.handler, *_weight(one)) for one in self.names or ()]
        elif all(pairs):
            weighted = [(one[0], one[2], one[1], int(one[3] or 1)) for one in pairs if one]
        else:
            raise typer.BadParameter(
                "give each queue its handler, as in orders=app:charge mails=app:send, or name one handler and then the "
                "queues, as in app:handle orders mails",
                param_hint="HANDLER",
            )
        if not weighted:
            return [ServedQueue(self.handler)]
        if self.dead_letter_queue is not None and len(weighted) > 1:
            raise typer.BadParameter(
                "works with one QUEUE: queues cannot share a list", param_hint="--dead-letter-queue"
            )
        chosen: dict[str, ServedQueue] = {}
        for text, handler, name, weight in weighted:
            if name in chosen:
                raise typer.BadParameter(f"{name!r} is named twice", param_hint="QUEUE")
            if not 1 <= weight <= 1_000:
                raise typer.BadParameter(f"the weight in {text!r} must be from 1 to 1,000", param_hint="QUEUE")
            chosen[name] = ServedQueue(handler, self._choice(name), weight)
        return list(chosen.values())

    def _choice(self, name: str) -> QueueChoice:
        return QueueChoice(
            name=name,
            url=self.url,
            key_separator=self.key_separator,
            hash_tag=self.hash_tag,
            dead_letter_queue=self.dead_letter_queue,
        )


def _weight(text: str) -> tuple[str, int]:
    """Return the name and the weight of QUEUE or QUEUE=WEIGHT."""
    weighted = _WEIGHTED.fullmatch(text)
    return (text, 1) if weighted is None else (weighted[1], int(weighted[2]))


def check_reference(name: str, reference: str) -> None:
    """Raise unless this has the form `package.module:attribute`."""
    module, colon, path = reference.partition(":")
    parts = [*module.split("."), *path.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ConfigurationError(f"{name} must be package.module:attribute, such as shop.mails:send, not {reference!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How each process calls the handlers."""

    concurrency: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="How many handlers run at the same time in each process, for all queues: threads, or tasks of an "
            "async handler.",
        ),
    ] = 1
    prefetch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MAX_MESSAGES,
            help="How many messages to claim in one round trip; by default one for each idle handler.",
            rich_help_panel=_CLAIMS,
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MAX_MESSAGES,
            help="Call the handler with lists of up to N messages.",
            rich_help_panel=_CLAIMS,
        ),
    ] = None
    batch_seconds: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How long to wait for a list to fill.", rich_help_panel=_CLAIMS),
    ] = None
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when no message is pending.")] = False
    wait_for_retries: Annotated[
        bool,
        typer.Option(
            "--wait-for-retries",
            help="With --until-empty: also wait for the next attempts of messages that failed.",
            rich_help_panel=_CLAIMS,
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """How many processes there are, and how they start and end."""

    processes: Annotated[int, typer.Option(metavar="N", min=1, max=1_000, help="How many processes to run.")] = 1
    payload_bytes: Annotated[
        bool, typer.Option("--bytes", help="Pass payloads as bytes instead of str.", rich_help_panel=_CLAIMS)
    ] = False
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: restart the processes when a file of your modules changes."),
    ] = False
    wait: Annotated[
        bool,
        typer.Option(
            help="Wait for a server that cannot be reached at the start, instead of ending.", rich_help_panel=_PROCESSES
        ),
    ] = True
    grace_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a stop waits for handlers before it abandons them.",
            show_default="as long as they take",
            rich_help_panel=_PROCESSES,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """What the worker says of itself."""

    health_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65_535,
            help="Serve /healthz, /readyz and /metrics on this port; 0 chooses a free one.",
        ),
    ] = None
    health_host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="The address to serve them at; 0.0.0.0 is every address.", rich_help_panel=_WATCH
        ),
    ] = "127.0.0.1"
    health_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="/healthz fails when a loop has not turned or a process has not reached Redis for so long.",
            rich_help_panel=_WATCH,
        ),
    ] = 60.0
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A file that exists while all processes are running and reach Redis.",
            rich_help_panel=_WATCH,
        ),
    ] = None
    log_level: Annotated[LogLevel, typer.Option(help="The level of the log on stderr.")] = "warning"
    log_format: Annotated[
        LogFormat, typer.Option(help="Lines of text, or a JSON object a line.", rich_help_panel=_WATCH)
    ] = "text"
    tracebacks: Annotated[
        bool,
        typer.Option(
            "--tracebacks/--no-tracebacks",
            help="Log where a handler raised when its message fails for good, and keep that in the record of the "
            "message. It may quote what the handler put into the exception.",
            rich_help_panel=_WATCH,
        ),
    ] = True

    @property
    def health_at(self) -> tuple[str, int] | None:
        """Where to serve the pages; None for nowhere."""
        return None if self.health_port is None else (self.health_host, self.health_port)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker process. They go through a pipe: anybody can read a password in the arguments."""

    handlers: list[str]  # of each queue, or the one of the user's own queue
    queue_object: str | None = None  # where to import the user's own queue from
    queues: list[QueueChoice] = field(default_factory=list)  # or which queues to open
    weights: list[int] = field(default_factory=lambda: [1])
    address: str = ""
    delivery: DeliveryOptions
    run: dict[str, Any]  # the arguments of `run_queues` besides the queues and the handlers
    payload_bytes: bool
    log_level: str
    log_format: LogFormat
    tracebacks: bool
    is_watched: bool  # whether anybody asks for its health
    reload: bool
    ready_file: str | None
    supervisor_pid: int = 0

    @classmethod
    def create(
        cls,
        queues: ServedQueues,
        queue_object: str | None,
        delivery: DeliveryOptions,
        loop: LoopOptions,
        process: ProcessOptions,
        watch: WatchOptions,
    ) -> WorkerSettings:
        """Return the settings for what the user wants. Raises for what does not go together."""
        served = queues.served()
        choices = [one.choice for one in served if one.choice is not None]
        if queue_object is not None:
            check_reference("--queue", queue_object)
        if queue_object is not None and choices:
            raise typer.BadParameter("pass either a QUEUE or --queue", param_hint="QUEUE")
        if not choices and delivery != DeliveryOptions():
            raise typer.BadParameter("set leases, retries and lists on the queue object itself", param_hint="--queue")
        if loop.wait_for_retries and not loop.until_empty:
            raise typer.BadParameter("needs --until-empty", param_hint="--wait-for-retries")
        if process.reload and loop.until_empty:
            raise typer.BadParameter("does not go together with --until-empty", param_hint="--reload")
        return cls(
            handlers=[one.handler for one in served],
            queue_object=queue_object,
            queues=choices,
            weights=[one.weight for one in served],
            address=queues.shown_url if choices else "",
            delivery=delivery,
            run=asdict(loop) | {"renew_leases": delivery.heartbeat_interval_seconds != 0},
            payload_bytes=process.payload_bytes,
            log_level=watch.log_level,
            log_format=watch.log_format,
            tracebacks=watch.tracebacks,
            is_watched=watch.health_port is not None or watch.ready_file is not None,
            reload=process.reload,
            ready_file=None if watch.ready_file is None else str(watch.ready_file.absolute()),
        )

    def queue_options(self) -> dict[str, Any]:
        """Return the options of queues that the worker opens by itself."""
        return self.delivery.queue_options() | {"keep_tracebacks": self.tracebacks}

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerSettings:
        values = json.loads(text)
        values["queues"] = [QueueChoice(**one) for one in values["queues"]]
        values["delivery"] = DeliveryOptions(**values["delivery"])
        return cls(**values)

    def served(self, names: list[str]) -> str:
        """Return in words which handlers serve these queues."""
        weighted = zip(names, self.weights, strict=True)
        if len(set(self.handlers)) == 1:
            shown = ", ".join(name if weight == 1 else f"{name}={weight}" for name, weight in weighted)
            return f"{self.handlers[0]} serves {shown}"
        pairs = zip(weighted, self.handlers, strict=True)
        return "serving " + ", ".join(
            f"{name}={handler}" if weight == 1 else f"{name}={handler}={weight}" for (name, weight), handler in pairs
        )
