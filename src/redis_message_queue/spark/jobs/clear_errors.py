"""Finds the one line that matters in what Spark says of a job that failed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no stubs
from pyspark.errors import PySparkException

from redis_message_queue.errors import JobError, RedisMessageQueueError

_OURS = re.compile(r"redis_message_queue\.(?:[\w.]+\.)?(\w+): (.+)")
_SPARKS = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .+")


@contextmanager
def one_clear_error(doing: str) -> Iterator[None]:
    """Spark wraps what a task raises into dozens of lines; ours is found in them, or Spark's own reason."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise told(str(error), doing) from error


def told(text: str, doing: str) -> RedisMessageQueueError:
    """The error that one of our tasks raised, as far as it can be told; else a JobError."""
    if found := _OURS.search(text):
        kind = next((one for one in _kinds(RedisMessageQueueError) if one.__name__ == found[1]), JobError)
        return kind(found[2].strip())
    return JobError(f"{doing} failed: {reason(text)}")


def _kinds(kind: type[RedisMessageQueueError]) -> Iterator[type[RedisMessageQueueError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _kinds(one)


def reason(text: str) -> str:
    """Spark's own words among the lines of a trace: what happened, and what caused it in the end."""
    found = _SPARKS.findall(text)
    if not found:
        return next((line.strip() for line in text.splitlines() if line.strip()), "for a reason that it did not give")
    return " ".join(dict.fromkeys((found[0], found[-1])))
