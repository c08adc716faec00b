"""rmq spark groups and rmq spark release: what streaming queries have claimed, and how to get it back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.connection import text_of
from redis_message_queue.cli.exit_status import CommandFailedError, ExitStatus
from redis_message_queue.cli.output import Output
from redis_message_queue.cli.spark.options import address_of
from redis_message_queue.spark.options import QueueAddress, SourceOptions

if TYPE_CHECKING:
    from redis_message_queue.spark.consumer_group import ConsumerGroup


def groups(queue: QueueChoice, output: Output) -> None:
    """Show the consumer groups of a queue: who holds each, how many messages it has claimed, and how far it has come.

    `holder` is the running query, if there is one; it keeps others out for `lease_seconds` more.
    `oldest_seconds` is the age of the oldest message that is claimed, and `lag` the number of
    messages that nobody has claimed.

    Batches are numbered. Those up to `acked` are done. Those up to `sealed` belong to a query, or
    to the next query that you start with the same checkpoint. The table `claimed` of the Spark format shows
    their messages.
    """
    address = address_of(queue)
    with queue.client() as client:
        rows = [_row(_group(client, address, name), messages) for name, messages in _messages_by_group(client, address)]
    output.table(rows, empty=f"no streaming query has read {queue.name!r}")
    if any(row["messages"] for row in rows):
        output.say(
            "To look at these messages: spark.read.format('redis_message_queue').option('table', 'claimed') with url, "
            f"queue {queue.name!r} and, for one group, consumerGroup."
        )


def release(
    queue: QueueChoice,
    output: Output,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> ExitStatus | None:
    """Return the messages that a streaming query has claimed but not acked, if you will never start it again.

    The messages return to the front of the queue. If the query had written them to its sink before it died, they are
    handled twice. If you do start it again with its checkpoint, it fails with an error about data loss. A running query
    keeps its group: stop it first.
    """
    address = address_of(queue)
    with queue.client() as client:
        claimed = dict(_messages_by_group(client, address)).get(group)
        if claimed is None:
            raise CommandFailedError(f"queue {queue.name!r} has no consumer group {group!r}; see rmq spark groups")
        if not yes and not _confirmed(claimed, group):
            return ExitStatus.FAILED
        acquired = _group(client, address, group)
        acquired.acquire_group()
        try:
            acquired.recover()
            released = acquired.release_batches()
        finally:
            acquired.release_lease()
    output.document({"queue": queue.name, "group": group, "released": released})
    return None


def _confirmed(claimed: int, group: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask for confirmation; add --yes", param_hint="--yes")
    return typer.confirm(f"Return {claimed:,} messages of consumer group {group!r} to the queue?", err=True)


def _messages_by_group(client: Any, address: dict[str, Any]) -> list[tuple[str, int]]:
    found: dict[bytes, bytes] = client.hgetall(QueueAddress(**address).keys.groups)
    return sorted((text_of(name), int(messages)) for name, messages in found.items() if name)  # '' has the sum


def _group(client: Any, address: dict[str, Any], name: str) -> ConsumerGroup:
    from redis_message_queue.spark.consumer_group import ConsumerGroup

    return ConsumerGroup(client, SourceOptions(**address, consumer_group=name))


def _row(group: ConsumerGroup, messages: int) -> dict[str, Any]:
    state, held = group.state(), group.holder()
    return {
        "group": group.name,
        "holder": held.holder,
        "lease_seconds": round(held.lease_seconds, 1),
        "messages": messages,
        "oldest_seconds": None if held.oldest_seconds is None else round(held.oldest_seconds, 1),
        "lag": held.lag,
        "sealed": state.sealed,
        "acked": state.acked,
        "epoch": state.epoch,
    }
