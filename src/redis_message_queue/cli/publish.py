"""rmq publish: messages from arguments, files or a pipe into a queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from redis_message_queue.cli.frame import CommandLine, ExitStatus, Output, QueueChoice
from redis_message_queue.options import DEFAULT_DEDUPLICATION_SECONDS

app = CommandLine()

_DUPLICATES, _LIMITS = "Duplicates", "Limits"


class WhenFull(StrEnum):
    """What a publish does at a limit."""

    RAISE = "raise"
    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """By what a message is known as one that was published before."""

    dedup: Annotated[
        bool, typer.Option("--dedup", help="The same content is published once.", rich_help_panel=_DUPLICATES)
    ] = False
    dedup_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The key of the one message that is given.", rich_help_panel=_DUPLICATES),
    ] = None
    dedup_key_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="The field of each JSON object that is its key; a.b for a field in a field.",
            rich_help_panel=_DUPLICATES,
        ),
    ] = None
    dedup_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long a key is remembered.", rich_help_panel=_DUPLICATES),
    ] = DEFAULT_DEDUPLICATION_SECONDS

    def queue_options(self) -> dict[str, Any]:
        """As options of a queue."""
        from redis_message_queue.cli.message_source import key_from_field

        chosen = [self.dedup, self.dedup_key is not None, self.dedup_key_field is not None]
        if sum(chosen) > 1:
            raise typer.BadParameter("choose one", param_hint="--dedup, --dedup-key, --dedup-key-field")
        options: dict[str, Any] = {
            "deduplication": any(chosen),
            "message_deduplication_log_ttl_seconds": self.dedup_seconds,
        }
        if self.dedup_key is not None:
            options["get_deduplication_key"] = lambda message: self.dedup_key
        elif self.dedup_key_field is not None:
            options["get_deduplication_key"] = key_from_field(self.dedup_key_field)
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How full the queue may get."""

    max_pending: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many messages may wait.", rich_help_panel=_LIMITS)
    ] = None
    when_full: Annotated[WhenFull, typer.Option(help="What to do at that limit.", rich_help_panel=_LIMITS)] = (
        WhenFull.RAISE
    )
    block_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long `block` waits for room.", rich_help_panel=_LIMITS)
    ] = 60.0

    def queue_options(self) -> dict[str, Any]:
        """As options of a queue. Who only publishes delivers nothing, and has no limit of deliveries."""
        return {
            "max_pending_length": self.max_pending,
            "pending_overload_policy": self.when_full.value,
            "pending_overload_block_timeout_seconds": self.block_seconds,
            "max_delivery_count": None,
        }


@app.command()
def publish(
    queue: QueueChoice,
    output: Output,
    duplicates: Duplicates,
    limits: Limits,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE", help="The messages.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="PATH",
            help="A message a line; of a .json file each element of its array, or the one object. - is stdin.",
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Whose line they wait in.")] = None,
    delay: Annotated[float | None, typer.Option(metavar="SECONDS", min=0, help="Deliver no earlier than so.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver no earlier, such as 2030-01-31T08:00:00+01:00.")
    ] = None,
    many: Annotated[
        int, typer.Option("--many", metavar="N", min=1, max=1_000, help="How many go in one round trip.")
    ] = 1_000,
) -> ExitStatus | None:
    """Publish messages: those given, those of a file, or else one for each line of stdin.

    Lines come as they are, without their end; empty ones are left out. What a pipe brings is sent when it comes, so
    `tail -f log | rmq publish lines` works. Prints how many were published, and how many were suppressed as
    duplicates, which is no failure. An error comes after these numbers, so that a script can go on from there.
    """
    from redis_message_queue.cli.message_source import open_source
    from redis_message_queue.cli.publishing import Publishing

    if duplicates.dedup_key is not None and (file is not None or len(messages or []) != 1):
        raise typer.BadParameter("goes with one MESSAGE; for many there is --dedup-key-field", param_hint="--dedup-key")
    if messages and file is not None:
        raise typer.BadParameter("give messages or a file, not both", param_hint="--file")
    details = {"tenant": tenant, "delay_seconds": delay, "at": None if at is None else _moment(at)}
    options = duplicates.queue_options() | limits.queue_options()
    with open_source(messages or [], file, many) as source, queue.open(text=True, **options) as opened:
        publishing = Publishing(opened, details)
        try:
            publishing.send(source)
        finally:
            if publishing.counts.total or source.exhausted:
                publishing.counts.show(output, queue.name)
    return None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time such as 2030-01-31T08:00:00+01:00", param_hint="--at") from None
    return moment.astimezone() if moment.tzinfo is None else moment
