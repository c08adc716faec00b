"""The options that the commands of `rmq spark` share, made from those of the jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.spark.job_options import ArchiveOptions, ReportOptions
from redis_message_queue.spark.options import PublishOptions, declared_options
from redis_message_queue.stored.bounds import MAX_MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK: dict[str, Any] = {"rich_help_panel": "Spark"}
# Java would spend more on compiling their queries than on the few rows that these read.
_ON_TABLES = ("refresh", "report", "overview", "acknowledge")
_PUBLISHING: dict[str, Any] = {"rich_help_panel": "Publishing", "show_default": True}


def job_option(options: type, name: str, metavar: str | None = None, *flags: str, **settings: Any) -> Any:
    """Return a command-line option with the description of the job's own option."""
    described: dict[str, Any] = {"help": declared_options(options)[name].description, "show_default": False}
    return typer.Option(*flags, metavar=metavar, **described | settings)


ArchivePath = Annotated[str, typer.Argument(metavar="PATH", help=declared_options(ArchiveOptions)["path"].description)]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="An option of the object store, such as aws_region. Can be repeated. Default: the environment.",
    ),
]
ArchivedQueue = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Where Spark runs: `--master` and `--conf`."""

    master: Annotated[
        str, typer.Option(metavar="MASTER", help="Where Spark runs. spark-submit has its own --master.", **_SPARK)
    ] = "local[*]"
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark. Can be repeated.", **_SPARK)
    ] = None

    @property
    def is_local(self) -> bool:
        """Whether Spark would run in this process alone, and is not running yet."""
        from redis_message_queue.spark.driver import under_spark_submit

        return self.master.startswith("local") and not under_spark_submit()

    @contextlib.contextmanager
    def session(self, job: str) -> Iterator[SparkSession]:
        """Open a session for one job, and stop it afterwards unless it was running before."""
        from pyspark.sql import SparkSession

        from redis_message_queue.spark import session
        from redis_message_queue.spark.driver import QUICK_START, under_spark_submit

        running = SparkSession.getActiveSession()
        start = QUICK_START if job in _ON_TABLES else {}
        opened = session(f"rmq spark {job}", self.master, **start | self._settings())
        if running is None and not under_spark_submit():
            # What fails is told in one line. Spark's log would have the stack trace of every attempt before it.
            opened.sparkContext.setLogLevel("FATAL")
        try:
            yield opened
        finally:
            if running is None:
                opened.stop()

    def _settings(self) -> dict[str, Any]:
        settings = dict(pair("--conf", one) for one in self.conf or ())
        for name in settings:
            if not name.startswith("spark."):
                raise typer.BadParameter(f"{name!r} does not start with 'spark.'", param_hint="--conf")
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingOptions:
    """How a job publishes. The fields have the names of the job's own options."""

    batch_size: Annotated[
        int, job_option(PublishOptions, "batch_size", "N", min=1, max=MAX_MESSAGES, **_PUBLISHING)
    ] = PublishOptions.batch_size
    max_pending_length: Annotated[
        int | None, job_option(PublishOptions, "max_pending_length", "N", min=1, **_PUBLISHING)
    ] = None
    max_pending_per_tenant: Annotated[
        int | None, job_option(PublishOptions, "max_pending_per_tenant", "N", min=1, **_PUBLISHING)
    ] = None
    pending_overload_block_timeout_seconds: Annotated[
        float, job_option(PublishOptions, "pending_overload_block_timeout_seconds", "SECONDS", min=0, **_PUBLISHING)
    ] = PublishOptions.pending_overload_block_timeout_seconds
    message_deduplication_log_ttl_seconds: Annotated[
        float, job_option(PublishOptions, "message_deduplication_log_ttl_seconds", "SECONDS", min=0.001, **_PUBLISHING)
    ] = PublishOptions.message_deduplication_log_ttl_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportingOptions:
    """What a report is made of, and where it is written."""

    into: Annotated[
        str | None,
        job_option(
            ReportOptions, "output", "DIR", "--output", "-o", help="The directory of the report. Default: PATH-report."
        ),
    ] = None
    since: Annotated[str | None, job_option(ReportOptions, "since", "TIME")] = None
    until: Annotated[str | None, job_option(ReportOptions, "until", "TIME")] = None
    timezone: Annotated[str | None, job_option(ReportOptions, "timezone", "ZONE")] = None
    storage: StorageOptions = None

    def job_options(self, path: str) -> dict[str, Any]:
        """Return these as options of the job that reads the archive at this path."""
        return {
            "output": self.into or f"{path.rstrip('/')}-report",
            "storage_options": storage_of(self.storage),
            **{name: getattr(self, name) for name in ("since", "until", "timezone")},
        }


def pair(option: str, given: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{given!r} is not NAME=VALUE", param_hint=option)
    return name, value


def storage_of(given: StorageOptions) -> dict[str, str]:
    """Return the options of the object store by name."""
    return dict(pair("--storage-option", one) for one in given or ())


def address_of(queue: QueueChoice) -> dict[str, Any]:
    """Return the address of a queue as the jobs take it. Asks the server whether it is part of a cluster."""
    from redis.cluster import RedisCluster

    if queue.partition is not None:
        raise typer.BadParameter("Spark works with all partitions of a queue", param_hint="--partition")
    with queue.client() as client:
        cluster = isinstance(client, RedisCluster)
    return {
        "url": queue.url,
        "queue": queue.name,
        "cluster": cluster,
        "key_separator": queue.key_separator,
        "hash_tag": bool(queue.hash_tag),
        "dead_letter_queue": queue.dead_letter_queue,
        "partitions": queue.partitions,
    }
