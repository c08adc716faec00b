"""rmq spark: its commands, in the order of its help."""

from redis_message_queue.cli.command import CommandLine
from redis_message_queue.cli.spark.entry_point import entry_point
from redis_message_queue.cli.spark.groups import groups, release
from redis_message_queue.cli.spark.job_commands import (
    acknowledge,
    archive,
    archive_all,
    backfill,
    compact,
    overview,
    refresh,
    replay,
    report,
)

app = CommandLine(
    help="Archive, report on and replay what went through a queue, with Spark; and manage its consumer groups.",
)
for command in (
    archive,
    archive_all,
    compact,
    refresh,
    report,
    overview,
    acknowledge,
    replay,
    backfill,
    groups,
    release,
    entry_point,
):
    app.command()(command)
