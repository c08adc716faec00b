"""Run first by each Python that Spark starts: a daemon imports what each worker that it forks would import.

A worker of a task, of a planner or of a sink lives for one test, and these take a second of processor time.
"""

import gc
import sys
from importlib import import_module

# What the jobs do in tasks; planners and sinks need the connector alone.
_IN_TASKS = (
    *("pandas", "pyarrow.dataset", "deltalake.fs"),
    *("redis_message_queue.spark.jobs.backfill", "redis_message_queue.spark.jobs.report"),
)


def prepare_a_daemon(kind: str) -> None:
    """Import what the workers of a kind need, which is the name of the module that they run."""
    for name in (kind, "redis_message_queue.spark.connector", *(_IN_TASKS if kind == "pyspark.worker" else ())):
        import_module(name)
    import_module("redis.connection").Connection()  # looks up the version of redis-py, and remembers it
    gc.collect()
    gc.freeze()


if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    prepare_a_daemon(sys.orig_argv[3])
