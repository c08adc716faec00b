"""A listener for streaming queries that reads queues: what each has claimed, read again, acked and released."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from redis_message_queue.spark.jobs.job import error_in
from redis_message_queue.values.errors import JobError
from redis_message_queue.values.plain_values import described

log = logging.getLogger("redis_message_queue")


@dataclass(frozen=True, kw_only=True)
class StreamProgress:
    """How far a streaming query has come with one queue. Counts are messages since this run of the query started."""

    query: str | None  # the name of the query, if it has one
    run_id: str
    queue: str
    consumer_group: str
    batch: int  # the last batch that is sealed; with partitions the sum of these numbers
    claimed: int
    rejected: int  # of these: moved to the dead letters, because the query cannot read them
    replayed: int  # read again, because an earlier run died before it had committed them
    acked: int
    released: int  # returned to the queue, because batches of the checkpoint are lost
    lag: int  # messages that are pending and not claimed
    oldest_seconds: float | None  # the age of the oldest of these


OnStreamProgress = Callable[[StreamProgress], Any]


def log_progress(progress: StreamProgress) -> None:
    """Write the progress to the log of the library."""
    log.info(
        "%s: consumer group %s has claimed %d messages (%d rejected, %d replayed, %d acked, %d released), and %d are "
        "pending",
        progress.queue,
        progress.consumer_group,
        progress.claimed,
        progress.rejected,
        progress.replayed,
        progress.acked,
        progress.released,
        progress.lag,
    )


class QueueListener(StreamingQueryListener):
    """Tells what streaming queries do with queues. Add it with `spark.streams.addListener(QueueListener(...))`.

    Spark calls it after each micro-batch of each query of the session. Queries that read no queue are left out.

    Args:
        on_progress: Called with a `StreamProgress` for each queue that a query reads. An exception in it is logged,
            and the query continues. By default the progress is logged at INFO.
    """

    def __init__(self, on_progress: OnStreamProgress = log_progress) -> None:
        self._on_progress = on_progress

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for one in read_progress(event.progress):
            try:
                self._on_progress(one)
            except Exception:
                log.exception("%s: the callback for the progress of a streaming query failed", one.queue)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Log in one line why a query failed, if an error of this library says so."""
        if event.exception and not isinstance(error := error_in(event.exception, "the query"), JobError):
            log.error("the streaming query %s failed: %s", event.id, described(error))


def read_progress(progress: Any) -> Iterator[StreamProgress]:
    """Return what a progress of Spark says of each queue that the query reads."""
    for source in progress.sources:
        told = json.loads(source.latestOffset or "null")
        if isinstance(told, dict) and "consumer_group" in told:
            yield StreamProgress(query=progress.name, run_id=str(progress.runId), **told)
