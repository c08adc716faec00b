"""rmq doctor: whether a server is fit for queues, and what to change."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from redis_message_queue.cli.frame import CommandLine, ExitStatus, Output, ServerChoice

app = CommandLine()


class _RoleName(StrEnum):
    PRODUCER = "producer"
    CONSUMER = "consumer"
    OPERATOR = "operator"
    JOURNAL = "journal"


@app.command()
def doctor(
    server: ServerChoice,
    output: Output,
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="Queues whose keys are looked at too.", show_default=False),
    ] = None,
    key_separator: Annotated[str, typer.Option(metavar="TEXT", help="Between the parts of their keys.")] = "::",
    hash_tag: Annotated[
        bool | None,
        typer.Option(
            "--hash-tag/--no-hash-tag",
            help="Whether their names stand in braces in their keys; by itself for clusters only.",
            show_default=False,
        ),
    ] = None,
    roles: Annotated[
        list[_RoleName] | None,
        typer.Option(
            "--role",
            help="What the user is for; check the permissions for that alone. May be given several times.",
            show_default="producer and consumer, and the others as advice",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Check the permissions of this user, as an administrator (Redis 7.0 or newer).",
            show_default=False,
        ),
    ] = None,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Write nothing: leave out the trial with a message.", show_default=False),
    ] = False,
) -> ExitStatus | None:
    """Check whether a server is fit for queues, and say what to change.

    It looks at the version, persistence, eviction, memory, replicas, connections, the clock, latency and cluster state;
    whether the user may run every command that the scripts use; and sends a message through a queue of its own (with
    --role only for a producer that is a consumer too). For each queue that is named it looks whether its keys have the
    right types and all of it lies under one name.

    A finding is `ok`, `advice` (it works, and could be safer) or `problem` (messages can be lost or doubled, or the
    queue does not work). The exit status is 1 if there is a problem.
    """
    from redis_message_queue.cli.doctor.examination import Examination
    from redis_message_queue.cli.doctor.finding import Level

    with server.client() as client:
        examination = Examination(client, server, queues or [], key_separator, hash_tag)
        wanted = [role.value for role in roles or []]
        found = list(examination.run(trial=not read_only, roles=wanted, user=user))
    columns = ["level", "check", "found", "change"]
    several = len({one["server"] for one in found}) > 1
    output.table(found, columns=["server", *columns] if several else columns, title=server.shown_url)
    levels = [one["level"] for one in found]
    output.say(f"problems: {levels.count(Level.PROBLEM)}, advice: {levels.count(Level.ADVICE)}")
    return ExitStatus.NO if Level.PROBLEM in levels else None
