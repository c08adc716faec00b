"""The parameters that the commands of `rmq spark` share: where Spark runs, and where the queue is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.frame import QueueChoice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK = "Spark"
_IN_PANEL: dict[str, Any] = {"rich_help_panel": "Publishing"}
_DAY_SECONDS = 86_400

Archive = Annotated[str, typer.Argument(metavar="PATH", help="The archive: a directory, or s3a://, hdfs:// and so on.")]
Named = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkChoice:
    """Where Spark runs; as a parameter of a command it is `--master` and `--conf`."""

    master: Annotated[
        str,
        typer.Option(
            "--master", metavar="MASTER", help="Where Spark runs; spark-submit decides itself.", rich_help_panel=_SPARK
        ),
    ] = "local[*]"
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf",
            metavar="NAME=VALUE",
            help="A setting of Spark; may be given often.",
            show_default=False,
            rich_help_panel=_SPARK,
        ),
    ] = None

    @contextlib.contextmanager
    def session(self, job: str) -> Iterator[SparkSession]:
        """A session for one job, ended with it; one that was there before goes on."""
        from redis_message_queue.spark import session

        running = _running_session()
        opened = session(f"rmq spark {job}", self.master, **self._settings())
        try:
            yield opened
        finally:
            if running is None:
                opened.stop()

    def _settings(self) -> dict[str, Any]:
        settings = dict(pair("--conf", one) for one in self.conf or ())
        for name in settings:
            if not name.startswith("spark."):
                raise typer.BadParameter(f"{name!r} does not begin with 'spark.'", param_hint="--conf")
        return settings


def _running_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishChoice:
    """How a job publishes; as a parameter of a command these are its options."""

    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000, help="How many messages one script publishes.", **_IN_PANEL)
    ] = 1_000
    max_pending_length: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="How many may wait in the queue; the job waits for room.", **_IN_PANEL),
    ] = None
    wait_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long it waits for room before it fails.", **_IN_PANEL)
    ] = 60.0
    remember_days: Annotated[
        float, typer.Option(metavar="DAYS", min=0.001, help="How long a key suppresses its repetition.", **_IN_PANEL)
    ] = 30.0

    def options(self) -> dict[str, Any]:
        """The same, as the options of a job say it."""
        return {
            "batch_size": self.batch_size,
            "max_pending_length": self.max_pending_length,
            "wait_seconds": self.wait_seconds,
            "remember_seconds": self.remember_days * _DAY_SECONDS,
        }


def pair(option: str, given: str) -> tuple[str, str]:
    """NAME=VALUE in two."""
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{given!r} is not NAME=VALUE", param_hint=option)
    return name, value


def address_of(queue: QueueChoice) -> dict[str, Any]:
    """Where a queue is, as the options of a job say it; the server is asked whether it is part of a cluster."""
    from redis.cluster import RedisCluster

    with queue.client() as client:
        cluster = isinstance(client, RedisCluster)
    return {
        "url": queue.url,
        "queue": queue.name,
        "key_separator": queue.key_separator,
        "hash_tag": bool(queue.hash_tag),
        "cluster": cluster,
        "dead_letter_key": queue.dead_letter_queue,
    }
