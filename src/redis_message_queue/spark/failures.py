"""Errors of streams, sinks and tables in one line, as those of jobs."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis_message_queue.spark.jobs.job import translate_errors


@contextmanager
def translate_errors(what: str = "Spark") -> Iterator[None]:
    """Raise the error of a source, a sink or a table, instead of the dozens of lines that Spark wraps around it.

    Put it around a `save()` into a queue, or around `query.awaitTermination()`. The jobs do that themselves.

    Args:
        what: What failed, for a reason of Spark's own.

    Raises:
        RedisMessageQueueError: The error that was raised in a task or on the driver, by its type.
        JobError: Spark failed for another reason.
    """
    with translate_errors(what):
        yield
