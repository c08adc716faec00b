"""rmq spark groups and rmq spark release: what streaming queries have claimed, and how an operator gets it back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.frame import CommandFailedError, ExitStatus, Output, QueueChoice
from redis_message_queue.cli.node import text_of

if TYPE_CHECKING:
    from redis_message_queue.spark.groups import Groups


def groups(queue: QueueChoice, output: Output) -> None:
    """Show the consumer groups of a queue: how many messages each has claimed, and how far it has come.

    Claims are numbered. Those up to [bold]acked[/bold] are handled, those up to [bold]sealed[/bold] are in the hands of
    a query, or of the next one that is started with the same checkpoint.
    """
    with queue.client() as client:
        rows = [_told(_group(client, queue, name), messages) for name, messages in _groups_of(client, queue)]
    output.table(rows, empty=f"no streaming query has read {queue.name!r}")


def release(
    queue: QueueChoice,
    output: Output,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)] = False,
) -> ExitStatus | None:
    """Give back what a streaming query has claimed and not handled, for a query that will never be started again.

    The messages return to the heads of their lines. If the query had written them to its sink before it died, they will
    be handled twice; if it is started again with its checkpoint, it ends with an error about data loss. A query that
    still runs keeps its group: stop it first.
    """
    with queue.client() as client:
        claimed = dict(_groups_of(client, queue)).get(group)
        if claimed is None:
            raise CommandFailedError(f"queue {queue.name!r} has no consumer group {group!r}; see rmq spark groups")
        if not yes and not _agreed(claimed, group):
            return ExitStatus.NO
        held = _group(client, queue, group)
        held.take_over()
        try:
            held.adopt()
            released = held.release()
        finally:
            held.leave()
    output.document({"queue": queue.name, "group": group, "released": released})
    return None


def _agreed(claimed: int, group: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is here to be asked; add --yes", param_hint="--yes")
    return typer.confirm(f"Give {claimed:,} messages of consumer group {group!r} back to their lines?", err=True)


def _groups_of(client: Any, queue: QueueChoice) -> list[tuple[str, int]]:
    found: dict[bytes, bytes] = client.hgetall(_group(client, queue, "any").keys.groups)
    return sorted((text_of(name), int(messages)) for name, messages in found.items() if name)  # '' has the sum


def _group(client: Any, queue: QueueChoice, name: str) -> Groups:
    from redis_message_queue.spark.groups import Groups, Rules

    rules = Rules(
        dead_letter_queue=queue.dead_letter_queue,
        key_separator=queue.key_separator,
        hash_tag=bool(queue.hash_tag),
    )
    return Groups(client, queue.name, name, rules=rules)


def _told(group: Groups, messages: int) -> dict[str, Any]:
    progress = group.progress()
    return {
        "group": group.group,
        "messages": messages,
        "sealed": progress.sealed,
        "acked": progress.acked,
        "epoch": progress.epoch,
    }
