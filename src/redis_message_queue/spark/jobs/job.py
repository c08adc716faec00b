"""How a job reports its progress, its result and its failure."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no stubs
from pyspark.errors import PySparkException

from redis_message_queue.values.errors import ConfigurationError, JobError, RedisMessageQueueError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS_A_PARTITION = 250_000
_OUR_ERROR = re.compile(r"redis_message_queue\.(?:[\w.]+\.)?(\w+): (.+)")
_ERROR_OF_SPARK = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .+")
_MISSING_CLASS = re.compile(r"ClassNotFoundException: (?:Class )?([\w.$]+)")
_CAUSE = re.compile(r"^(?:Caused by)?: (?:[\w.$]+(?:Exception|Error): )*(.+)$", re.M)
_JARS = {"s3a": " (org.apache.hadoop:hadoop-aws of Hadoop's version)", "azure": " (org.apache.hadoop:hadoop-azure)"}


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A finished step of a job: its name, and how much is done of how much, if that is known."""

    step: str
    done: int = 0
    total: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        amount = "" if not self.done and self.total is None else f" {self.done:,}"
        amount += f" of {self.total:,}" if self.total is not None else ""
        return f"{self.step}{amount}{': ' + self.detail if self.detail else ''}"


OnProgress = Callable[[JobProgress], Any]


def ignore_progress(progress: JobProgress) -> None:
    """The default callback."""


class JobResult:
    """A result that can be printed as JSON."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as values that JSON has."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every subclass is a dataclass


def require_classic(spark: Any, job: str) -> None:
    """Refuse a session of Spark Connect, which has no executors that a job could give work to.

    Raises:
        ConfigurationError: It is one.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            f"{job} needs a classic Spark session, and this is one of Spark Connect. Run it with spark-submit and the "
            "file of `rmq spark entry-point`, or with `rmq spark` on a machine that reaches Redis."
        )


@contextmanager
def own_session(spark: "SparkSession", rows: int = 0) -> Iterator["SparkSession"]:
    """Give a session with settings for a job of ours, whatever those of the user's session are.

    Afterwards the user's session is the active one again. Spark would make 200 partitions of every shuffle, also of
    cached ones: 300 s of processor time for a million journal entries, and 85 s with four.
    """
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.shuffle.partitions", str(rows // _ROWS_A_PARTITION + 1))
    own.conf.set("spark.sql.adaptive.enabled", "false")  # keeps what is cached partitioned by its key
    try:
        yield own
    finally:
        spark.createDataFrame([], "id string")  # which activates the session that it is called on


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
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise error_in(str(error), what) from error


def error_in(text: str, job: str) -> RedisMessageQueueError:
    """Return the error that one of our tasks raised, or else a JobError with Spark's reason."""
    if found := _OUR_ERROR.search(text):
        kind = next((one for one in _kinds(RedisMessageQueueError) if one.__name__ == found[1]), JobError)
        return kind(found[2].strip())
    return JobError(f"{job} failed: {reason(text)}")


def _kinds(kind: type[RedisMessageQueueError]) -> Iterator[type[RedisMessageQueueError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _kinds(one)


def reason(text: str) -> str:
    """Return Spark's own words from a stack trace: what happened, and the last cause."""
    if missing := _MISSING_CLASS.search(text):
        hint = _JARS.get(missing[1].split(".")[4] if missing[1].startswith("org.apache.hadoop.fs.") else "", "")
        return f"the class {missing[1]} is not there. Add its jar, with --conf spark.jars.packages=...{hint}"
    found = _ERROR_OF_SPARK.findall(text)
    if found:
        return " ".join(dict.fromkeys((found[0], found[-1])))
    found = _CAUSE.findall(text)
    return (
        found[-1].strip()
        if found
        else next((line.strip() for line in text.splitlines() if line.strip()), "Spark gave no reason")
    )
