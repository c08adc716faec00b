"""What can go wrong in a job, sorted by what its caller can do about it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from redis_message_queue import errors
from redis_message_queue.errors import RedisMessageQueueError


class JobError(RedisMessageQueueError):
    """A job could not do its work: the text says what was in the way."""


class ArchiveError(JobError):
    """The archive and the journal do not fit together, or the archive is not one: the text says what would do."""


class ArchiveConflictError(ArchiveError):
    """Another run has changed the archive meanwhile, and nothing was changed by this one: run it again."""


class SelectionError(JobError, ValueError):
    """A selection or a source of rows cannot be read: the text has Spark's reason and the columns there are."""


_OURS = re.compile(r"redis_message_queue\.(?:[\w.]+\.)?(\w+Error): (.+)")


@contextmanager
def one_clear_error(doing: str) -> Iterator[None]:
    """Spark wraps what a task raises into dozens of lines; ours is found in them, or Spark's own first line."""
    try:
        yield
    except PySparkException as error:
        raise told(error, doing) from error


def told(error: PySparkException, doing: str) -> RedisMessageQueueError:
    """The error that one of our tasks raised, as far as it can be told; else a JobError."""
    text = str(error)
    if found := _OURS.search(text):
        kind = getattr(errors, found[1], None)
        ours = kind if isinstance(kind, type) and issubclass(kind, RedisMessageQueueError) else JobError
        return ours(found[2].strip())
    return JobError(f"{doing} failed: {first_line(error)}")


def first_line(error: PySparkException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
