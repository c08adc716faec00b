"""rmq purge: removes all messages of one kind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output
from redis_message_queue.protocol.operate.purge import PurgeTarget
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.plain_values import printable

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue


def purge(
    queue: QueueChoice,
    output: Output,
    target: Annotated[PurgeTarget, typer.Argument(metavar="TARGET", help="What to remove.")],
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only pending messages of this tenant.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> ExitStatus | None:
    """Remove all messages of one kind for good, and print how many there were.

    The command shows how many messages there are and asks you to confirm. Without a terminal it needs --yes. Messages
    that are published while it runs are not removed.

    Messages in processing cannot be removed, because a consumer is working on them. `orphans` are messages in
    processing that a consumer without a visibility timeout left behind when it crashed. On such a queue, messages that
    are being handled right now look the same.

    The exit status is 1 if you answer no.
    """
    if tenant is not None and target != "pending":
        raise typer.BadParameter(f"works with pending, not with {target}", param_hint="--tenant")
    with queue.open() as opened:
        if not yes and not _confirmed(opened, queue.name, target, tenant):
            output.say("nothing was removed")
            return ExitStatus.FAILED
        removed = opened.purge(target) if tenant is None else opened.tenant(tenant).delete()
    if output.json:
        output.line({"queue": queue.name, "target": target, "tenant": tenant, "removed": removed})
    else:
        output.say(f"{removed:,} removed")
    return None


def _confirmed(queue: RedisMessageQueue, name: str, target: PurgeTarget, tenant: str | None) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("nothing was removed: there is no terminal to ask for confirmation; add --yes")
    whose = "" if tenant is None else f" of {printable(tenant)}"
    return typer.confirm(f"Remove {_messages(queue, target, tenant)}{whose} from {printable(name)} for good?", err=True)


def _messages(queue: RedisMessageQueue, target: PurgeTarget, tenant: str | None) -> str:
    if tenant is not None:
        return f"{queue.tenant(tenant).length():,} pending messages"
    stats = queue.stats(oldest=False)
    if target == "orphans":
        return f"those of {stats.processing:,} messages in processing that have no lease"
    kind = "dead letters" if target == "dead_letters" else f"{target} messages"
    return f"{getattr(stats, target):,} {kind}"
