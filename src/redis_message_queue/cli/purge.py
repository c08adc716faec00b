"""rmq purge: messages of one kind are removed for good."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from redis_message_queue.cli.frame import CommandLine, ExitStatus, Output, QueueChoice, printable
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.protocol.operator import Target

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue

app = CommandLine()


@app.command()
def purge(
    queue: QueueChoice,
    output: Output,
    target: Annotated[Target, typer.Argument(help="What to remove.", show_default=False)],
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of pending, only the line of this tenant.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)] = False,
) -> ExitStatus | None:
    """Remove all messages of one kind for good, and say how many there were.

    It says how many there are and asks first; where nobody can be asked it wants --yes. Messages that are published
    while it runs stay. What is in processing cannot be removed, because somebody works on it; `orphans` are messages
    that a consumer without a visibility timeout has left behind there. On such a queue those that are being handled
    just now look the same.

    The exit status is 1 if the answer to the question was no.
    """
    if tenant is not None and target != "pending":
        raise typer.BadParameter(f"goes with pending, not with {target}", param_hint="--tenant")
    with queue.open() as opened:
        if not yes and not _is_wanted(opened, queue.name, target, tenant):
            output.say("nothing was removed")
            return ExitStatus.NO
        removed = opened.purge(target) if tenant is None else opened.tenant(tenant).delete()
    if output.json:
        output.line({"queue": queue.name, "target": target, "tenant": tenant, "removed": removed})
    else:
        output.say(f"{removed:,} removed")
    return None


def _is_wanted(queue: RedisMessageQueue, name: str, target: Target, tenant: str | None) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask at, and nothing was removed; with --yes it does not ask")
    whose = "" if tenant is None else f" of {printable(tenant)}"
    question = f"Remove {_how_many(queue, target, tenant)}{whose} from {printable(name)} for good?"
    return typer.confirm(question, err=True)


def _how_many(queue: RedisMessageQueue, target: Target, tenant: str | None) -> str:
    if tenant is not None:
        return f"{queue.tenant(tenant).length():,} pending messages"
    stats = queue.stats(oldest=False)
    if target == "orphans":
        return f"those of {stats.processing:,} messages in processing that have no lease"
    kinds = {"dead_letters": "dead letters", "completed": "completed messages", "failed": "failed messages"}
    return f"{getattr(stats, target):,} {kinds.get(target, f'{target} messages')}"
