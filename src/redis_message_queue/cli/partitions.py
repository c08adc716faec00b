"""rmq partitions: what each partition of a queue has, and how to give a queue more of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output, to_dict
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.plain_values import printable

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue


def partitions(
    queue: QueueChoice,
    output: Output,
    grow: Annotated[int | None, typer.Option(metavar="N", min=1, help="Give the queue this many partitions.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> ExitStatus | None:
    """Show what each partition of a queue has, or give the queue more partitions.

    Before you use --grow, stop all producers and consumers: a program with another number of partitions is refused by
    every call, and cannot acknowledge what it has claimed. Start them again with the new number. Messages stay where
    they are and are delivered. Some keys change to a new partition: messages that wait under such a key may be
    overtaken by new ones, and their deduplication begins anew. If the command is interrupted, run it again.

    The command asks you to confirm. Without a terminal it needs --yes. The exit status is 1 if you answer no.
    """
    with queue.open() as opened:
        if grow is None:
            rows = [_row(opened, number) for number in range(opened.partitions)]
            output.table(rows, title=f"{queue.name}: partitions")
            return None
        if not yes and not _confirmed(queue.name, opened.partitions, grow):
            output.say("nothing was changed")
            return ExitStatus.FAILED
        before = opened.grow_partitions(grow)
    output.document({"queue": queue.name, "partitions": grow, "before": before})
    return None


def _row(queue: RedisMessageQueue, number: int) -> dict[str, Any]:
    part = queue.partition(number)
    counts = to_dict(part.stats(oldest=False))
    del counts["oldest_pending_seconds"]
    return {"partition": number, "keys": part.key.prefix} | counts | {"paused": part.is_paused()}


def _confirmed(name: str, before: int, after: int) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("nothing was changed: there is no terminal to ask for confirmation; add --yes")
    question = f"Grow {printable(name)} from {before} to {after} partitions, with all producers and consumers stopped?"
    return typer.confirm(question, err=True)
