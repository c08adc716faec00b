"""rmq spark: which commands it has, in the order of its help."""

from redis_message_queue.cli.frame import CommandLine
from redis_message_queue.cli.spark.groups import groups, release
from redis_message_queue.cli.spark.jobs import archive, backfill, compact, replay, report

app = CommandLine(
    help="Archive, report and replay what went through a queue, on Spark; and look after its streaming queries.",
)
for command in (archive, compact, report, replay, backfill, groups, release):
    app.command()(command)
