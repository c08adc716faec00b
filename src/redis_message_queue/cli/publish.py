"""rmq publish: publishes messages from arguments, files or a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.common_options import QueueChoice, queue_option
from redis_message_queue.cli.output import Output
from redis_message_queue.options.declared import DEFAULT_DEDUPLICATION_SECONDS, OverloadPolicy
from redis_message_queue.stored.bounds import MAX_MESSAGES

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue
    from redis_message_queue.cli.message_source import Source

_DEDUPLICATION, _BACKPRESSURE = "Deduplication", "Backpressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplication:
    """How a message is recognised that was published before."""

    deduplication: Annotated[bool, queue_option("deduplication", None, "--deduplication")] = False
    dedup_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The deduplication key, for a single MESSAGE."),
    ] = None
    dedup_key_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="The field of each JSON object that has its deduplication key; a.b for a nested field.",
            rich_help_panel=_DEDUPLICATION,
        ),
    ] = None
    message_deduplication_log_ttl_seconds: Annotated[
        float, queue_option("message_deduplication_log_ttl_seconds", _DEDUPLICATION, metavar="SECONDS")
    ] = DEFAULT_DEDUPLICATION_SECONDS

    def queue_options(self) -> dict[str, Any]:
        """Return these as options of a queue."""
        from redis_message_queue.cli.message_source import key_from_field

        chosen = [self.deduplication, self.dedup_key is not None, self.dedup_key_field is not None]
        if sum(chosen) > 1:
            raise typer.BadParameter("use only one", param_hint="--deduplication, --dedup-key, --dedup-key-field")
        options: dict[str, Any] = {
            "deduplication": any(chosen),
            "message_deduplication_log_ttl_seconds": self.message_deduplication_log_ttl_seconds,
        }
        if self.dedup_key is not None:
            options["get_deduplication_key"] = lambda message: self.dedup_key
        elif self.dedup_key_field is not None:
            options["get_deduplication_key"] = key_from_field(self.dedup_key_field)
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Backpressure:
    """How many messages may be pending, and what to do then."""

    max_pending_length: Annotated[int, queue_option("max_pending_length", _BACKPRESSURE, metavar="N", min=0)] = 0
    pending_overload_policy: Annotated[OverloadPolicy, queue_option("pending_overload_policy", _BACKPRESSURE)] = "raise"
    pending_overload_block_timeout_seconds: Annotated[
        float, queue_option("pending_overload_block_timeout_seconds", _BACKPRESSURE, metavar="SECONDS")
    ] = 1.0

    def queue_options(self) -> dict[str, Any]:
        """Return these as options of a queue."""
        return {
            "max_pending_length": self.max_pending_length or None,
            "pending_overload_policy": self.pending_overload_policy,
            "pending_overload_block_timeout_seconds": self.pending_overload_block_timeout_seconds,
            "max_delivery_count": None,  # nothing is delivered here, and `drop_oldest` allows no limit
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDetails:
    """When and to whom the messages are delivered."""

    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="The tenant of the messages.")] = None
    delay_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Do not deliver before this many seconds from now.")
    ] = None
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Do not deliver before this time, such as 2030-01-31T08:00:00+01:00; without a zone, it is UTC.",
        ),
    ] = None
    ttl_seconds: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, help="How long the messages may wait before they are dead letters."),
    ] = None
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of the messages.")
    ] = None
    partition_key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="In a queue with partitions: messages with the same key keep their order."),
    ] = None

    def publish_arguments(self) -> dict[str, Any]:
        """Return these as arguments of `publish_many`."""
        return {
            "tenant": self.tenant,
            "delay_seconds": self.delay_seconds,
            "at": None if self.at is None else _time(self.at),
            "ttl_seconds": self.ttl_seconds,
            "headers": None if not self.header else dict(map(parse_header, self.header)),
            "partition_key": self.partition_key,
        }


def publish(
    queue: QueueChoice,
    output: Output,
    deduplication: Deduplication,
    backpressure: Backpressure,
    details: MessageDetails,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE", help="The messages; a single - is the lines of stdin.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="PATH",
            help="Publish each line of this file; of a .json file, each element of its array. - is stdin.",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_MESSAGES, help="How many messages to send in one round trip.")
    ] = MAX_MESSAGES,
) -> None:
    """Publish messages: the arguments, the lines of a file, or the lines of stdin.

    A line is published as it is, without its line break; empty lines are skipped. What arrives through a pipe is
    published at once, so `tail -f log | rmq publish log-entries` works. With --deduplication, messages with the
    same content are published only once.

    The command prints how many messages were published and how many were suppressed as duplicates, which is not a
    failure. If an error stops it, it prints these numbers first, so that a script can continue from there. With --json
    it also prints the id of each message; for a duplicate, the id of the message that holds its deduplication key.
    """
    from redis_message_queue.cli.message_source import open_source

    if messages == ["-"] and file is None:
        messages, file = None, "-"
    if deduplication.dedup_key is not None and (file is not None or len(messages or []) != 1):
        raise typer.BadParameter("works with one MESSAGE; for several use --dedup-key-field", param_hint="--dedup-key")
    if messages and file is not None:
        raise typer.BadParameter("give messages or a file, not both", param_hint="--file")
    options = deduplication.queue_options() | backpressure.queue_options()
    with open_source(messages or [], file, batch_size) as source, queue.open(text=True, **options) as opened:
        results: list[bool] = []
        ids: list[str | None] | None = [] if output.json else None
        try:
            _send(opened, source, details.publish_arguments(), results, ids)
        finally:
            if results or source.exhausted:
                published = sum(results)
                suppressed = len(results) - published
                total = {"queue": queue.name, "published": published, "suppressed": suppressed}
                output.document(total if ids is None else total | {"ids": ids})


def _send(
    queue: RedisMessageQueue,
    source: Source,
    details: dict[str, Any],
    results: list[bool],
    ids: list[str | None] | None,
) -> None:
    """Publish everything that the source has; ``results`` has what was published, also if an error ends it.

    ``ids`` gets the ids, if they are wanted: for a duplicate, the id of the message that holds its key.
    """
    with _progress_bar(source) as update:
        for batch in source:
            try:
                if ids is None:
                    results += queue.publish_many(batch, **details)
                else:
                    receipts = queue.submit_many(batch, **details)
                    results += [one.accepted for one in receipts]
                    ids += [one.id if one.accepted else one.duplicate_of for one in receipts]
            except Exception as error:
                receipts = getattr(error, "receipts", [])
                results += getattr(error, "results", [one.accepted for one in receipts])
                if ids is not None:
                    ids += [one.id if one.accepted else None for one in receipts]
                raise
            update(len(results))


@contextlib.contextmanager
def _progress_bar(source: Source) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal and nobody is typing the messages."""
    if not sys.stderr.isatty() or source.name == "the arguments" or (source.total_bytes is None and sys.stdin.isatty()):
        yield lambda total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.fields[sent]:,} sent"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=source.total_bytes, sent=0)
        yield lambda total: bar.update(task, completed=source.read_bytes, sent=total)


def parse_header(text: str) -> tuple[str, str]:
    """Return the name and the value of a header, given as NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--header")
    return name, value


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time such as 2030-01-31T08:00:00+01:00", param_hint="--at"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time  # as in --where and --since
