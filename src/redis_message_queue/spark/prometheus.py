"""Metrics of streaming queries for Prometheus.

metrics = StreamMetrics()
spark.streams.addListener(QueueListener(metrics.on_progress))
prometheus_client.start_http_server(9000)
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from redis_message_queue.values.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from redis_message_queue.spark.listener import StreamProgress

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
except ImportError as error:
    raise MissingExtraError(
        "redis_message_queue.spark.prometheus needs prometheus_client. Run: pip install 'redis-exact-queue[metrics]'"
    ) from error

__all__ = ["StreamMetrics"]

_LABELS = ("queue", "consumer_group")
_COUNTS = {
    "claimed": "Messages that streaming queries have claimed.",
    "rejected": "Messages that were moved to the dead letters, because the query cannot read them.",
    "replayed": "Messages that were read again, because an earlier run of the query died.",
    "acked": "Messages of micro-batches that are committed.",
    "released": "Messages that were returned to the queue, because batches of the checkpoint are lost.",
}


class StreamMetrics:
    """Counts what streaming queries do with queues. Pass ``on_progress`` to a `QueueListener`.

    Args:
        registry: Where the metrics are registered; by default the global registry. Make one object for each registry.

    Raises:
        ConfigurationError: The registry has these metrics already.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None) -> None:
        where = REGISTRY if registry is None else registry
        try:
            self._counters = {
                name: Counter(f"rmq_stream_{name}", told, _LABELS, registry=where) for name, told in _COUNTS.items()
            }
            self._lag = Gauge("rmq_stream_lag", "Messages that are pending and not claimed.", _LABELS, registry=where)
            self._oldest = Gauge(
                "rmq_stream_oldest_seconds", "Age of the oldest pending message, 0 if none.", _LABELS, registry=where
            )
            self._batch = Gauge("rmq_stream_batch", "Number of the last sealed batch.", _LABELS, registry=where)
        except ValueError as error:
            raise ConfigurationError(
                f"the metrics cannot be registered: {error}; make one StreamMetrics for each registry"
            ) from error
        self._known: dict[tuple[str, str], StreamProgress] = {}
        self._lock = threading.Lock()

    def on_progress(self, progress: StreamProgress) -> None:
        """Count what is new since the last progress of the same run."""
        labels = (progress.queue, progress.consumer_group)
        with self._lock:
            before = self._known.get(labels)
            self._known[labels] = progress
        for name, counter in self._counters.items():
            # One query at a time holds a group, so another run begins where the last has ended, and counts from 0.
            known = getattr(before, name) if before is not None and before.run_id == progress.run_id else 0
            counter.labels(*labels).inc(max(0, getattr(progress, name) - known))
        self._lag.labels(*labels).set(progress.lag)
        self._oldest.labels(*labels).set(progress.oldest_seconds or 0.0)
        self._batch.labels(*labels).set(progress.batch)
