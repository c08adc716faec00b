"""rmq spark groups and rmq spark release: what streaming queries have claimed, and how to get it back."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.clients import text_of
from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import CommandFailedError, ExitStatus
from redis_message_queue.cli.output import Output
from redis_message_queue.cli.spark.spark_options import address_of
from redis_message_queue.spark.options import QueueAddress, SourceOptions

if TYPE_CHECKING:
    from redis_message_queue.spark.consumer_group import ConsumerGroup, GroupPart


def groups(queue: QueueChoice, output: Output) -> None:
    """Show the consumer groups of a queue: who holds each, how many messages it has claimed, and how far it has come.

    `holder` is the running query, if there is one; it keeps others out for `lease_seconds` more.
    `oldest_seconds` is the age of the oldest message that is claimed, and `lag` the number of
    messages that nobody has claimed.

    Batches are numbered. Those up to `acked` are done. Those up to `sealed` belong to a query, or
    to the next query that you start with the same checkpoint. The table `claimed` of the Spark format shows
    their messages. In a queue with partitions there is a row for each partition of a group.
    """
    address = address_of(queue)
    with queue.client() as client:
        rows = [
            _row(one, messages[one.partition.number])
            for name, messages in _messages_by_group(client, address).items()
            for one in _group(client, address, name).parts
        ]
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
        claimed = _messages_by_group(client, address).get(group)
        if claimed is None:
            raise CommandFailedError(f"queue {queue.name!r} has no consumer group {group!r}; see rmq spark groups")
        if not yes and not _confirmed(sum(claimed.values()), group):
            return ExitStatus.FAILED
        acquired = _group(client, address, group)
        acquired.acquire_group()
        try:
            acquired.recover()
            released = sum(one.release_batches() for one in acquired.parts)
        finally:
            acquired.release_lease()
    output.document({"queue": queue.name, "group": group, "released": released})
    return None


def _confirmed(claimed: int, group: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask for confirmation; add --yes", param_hint="--yes")
    return typer.confirm(f"Return {claimed:,} messages of consumer group {group!r} to the queue?", err=True)


def _messages_by_group(client: Any, address: dict[str, Any]) -> dict[str, Counter[int]]:
    """Return how many messages each group has claimed from each partition."""
    from redis_message_queue.spark.connection import open_partitions

    found: dict[str, Counter[int]] = {}
    for reader in open_partitions(client, QueueAddress(**address)):
        (reply,) = reader.read(("HGETALL", reader.keys.groups))
        pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        for name, messages in pairs:
            if name:  # '' has the sum
                found.setdefault(text_of(name), Counter())[reader.partition.number] = int(messages)
    return dict(sorted(found.items()))


def _group(client: Any, address: dict[str, Any], name: str) -> ConsumerGroup:
    from redis_message_queue.spark.consumer_group import ConsumerGroup

    return ConsumerGroup.open(client, SourceOptions(**address, consumer_group=name))


def _row(group: GroupPart, messages: int) -> dict[str, Any]:
    state, held = group.state(), group.holder()
    return {
        "group": group.name,
        **({"partition": group.partition.number} if group.partition.count > 1 else {}),
        "holder": held.holder,
        "lease_seconds": round(held.lease_seconds, 1),
        "messages": messages,
        "oldest_seconds": None if held.oldest_seconds is None else round(held.oldest_seconds, 1),
        "lag": held.lag,
        "sealed": state.sealed,
        "acked": state.acked,
        "epoch": state.epoch,
    }
