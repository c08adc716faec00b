"""rmq schedule: messages that the consumers of a queue publish again and again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from redis_message_queue.cli.command import CommandLine
from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import CommandFailedError
from redis_message_queue.cli.message_view import shortened
from redis_message_queue.cli.output import Output, to_dict
from redis_message_queue.cli.publish import parse_header
from redis_message_queue.protocol.schedules import MissedTicks

ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="What the schedule is called in this queue.")]

app = CommandLine(help="Add, list and remove schedules: messages that consumers publish again and again.")


@app.command()
def add(
    queue: QueueChoice,
    output: Output,
    schedule: ScheduleName,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message of each tick.")],
    cron: Annotated[
        str | None,
        typer.Option(metavar="CRON", help="When to publish it, such as '0 3 * * *' for every day at three o'clock."),
    ] = None,
    every_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1, help="Publish it whenever so many seconds have passed.")
    ] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of --cron, such as Europe/Vienna.")
    ] = "UTC",
    tenant: Annotated[str | None, typer.Option(metavar="TENANT", help="The tenant of the messages.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of the messages.")
    ] = None,
    missed: Annotated[
        MissedTicks,
        typer.Option(help="Of ticks that no consumer was there for, publish the last one, all of them, or none."),
    ] = "one",
) -> None:
    """Add a schedule to a queue, or replace the schedule of this name.

    The consumers of the queue publish the message of each tick, once. If only the message changes, the ticks go on as
    they were. Adding the same schedule again changes nothing.
    """
    given: dict[str, Any] = {"cron": cron, "every_seconds": every_seconds, "timezone": timezone, "missed": missed}
    headers = None if not header else dict(map(parse_header, header))
    with queue.open(text=True) as opened:
        changed = opened.schedule(schedule, message=message, tenant=tenant, headers=headers, **given)
        (stored,) = [one for one in opened.schedules() if one.name == schedule]
    output.document({"queue": queue.name, "name": schedule, "changed": changed, "next_tick": stored.next_tick})


@app.command("list")
def list_schedules(queue: QueueChoice, output: Output) -> None:
    """List the schedules of a queue with their last and their next tick, those with the next tick first."""
    with queue.open(text=True) as opened:
        rows = [to_dict(one) for one in opened.schedules()]
    if not output.json:
        rows = [_row(one) for one in rows]
    output.table(rows, empty=f"queue {queue.name!r} has no schedules")


def _row(found: dict[str, Any]) -> dict[str, Any]:
    every = found["every_seconds"]
    return {
        "name": found["name"],
        "when": found["error"] or found["cron"] or f"every {every:g} s",
        **{column: found[column] for column in ("timezone", "tenant", "last_tick", "next_tick")},
        "payload": shortened(found["payload"] or ""),
    }


@app.command()
def remove(queue: QueueChoice, output: Output, schedule: ScheduleName) -> None:
    """Remove a schedule from a queue. Messages that it has published stay."""
    with queue.open() as opened:
        if not opened.unschedule(schedule):
            raise CommandFailedError(f"queue {queue.name!r} has no schedule {schedule!r}; see rmq schedule list")
    output.document({"queue": queue.name, "name": schedule, "removed": True})
