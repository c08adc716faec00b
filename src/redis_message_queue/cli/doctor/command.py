"""rmq doctor: whether a server is fit for queues, and what to change."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_message_queue.cli.frame import CommandLine, ExitStatus, Output, ServerChoice

app = CommandLine()


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
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Write nothing: leave out the trial with a message.", show_default=False),
    ] = False,
) -> ExitStatus | None:
    """Check whether a server is fit for queues, and say what to change.

    It looks at the version, persistence, eviction, memory, replicas, connections, the clock, latency and cluster state,
    and sends a message through a queue of its own, to see that scripts and the waiting reads are permitted. For each
    queue that is named it looks whether its keys have the right types and all of it lies under one name.

    A finding is `ok`, `advice` (it works, and could be safer) or `problem` (messages can be lost or doubled, or the
    queue does not work). The exit status is 1 if there is a problem.
    """
    from redis_message_queue.cli.doctor.examination import Examination
    from redis_message_queue.cli.doctor.finding import Level

    with server.client() as client:
        found = list(Examination(client, server, queues or [], key_separator, hash_tag).run(trial=not read_only))
    columns = ["level", "check", "found", "change"]
    several = len({one["server"] for one in found}) > 1
    output.table(found, columns=["server", *columns] if several else columns, title=server.shown_url)
    levels = [one["level"] for one in found]
    output.say(f"problems: {levels.count(Level.PROBLEM)}, advice: {levels.count(Level.ADVICE)}")
    return ExitStatus.NO if Level.PROBLEM in levels else None
