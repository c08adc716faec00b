"""Metrics of queues for Prometheus: events are counted as they happen, queues are read at each scrape.

metrics = QueueMetrics()
queue = RedisMessageQueue("orders", client=client, on_event=metrics.on_event)
metrics.watch(queue)
prometheus_client.start_http_server(9000)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from redis_message_queue.metrics.labels import BoundedLabels
from redis_message_queue.metrics.stats_poller import STATES, StatsPoller, StatsPollers, StatsSample
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError, MissingExtraError
from redis_message_queue.values.events import EventOperation, EventOutcome, QueueEvent

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError(
        "redis_message_queue.metrics.prometheus needs prometheus_client; run: pip install 'redis-exact-queue[metrics]'"
    ) from error

__all__ = ["QueueMetrics", "StatsCollector"]

# From a fast publish on the same machine to a handler that takes an hour.
DURATION_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
DELIVERY_BUCKETS = (1, 2, 3, 5, 10, 25)


class QueueMetrics:
    """Counts and times the events of any number of queues. Threads and processes may share it.

    Args:
        registry: Where the metrics are registered; by default the global registry. Make one object for each registry.
        max_exception_types: How many exception classes the label ``exception_type`` names; further ones are "other".
        duration_buckets: The buckets of the durations, in seconds.

    Raises:
        ConfigurationError: The registry has these metrics already, or an option is invalid.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        max_exception_types: int = 20,
        duration_buckets: Sequence[float] = DURATION_BUCKETS,
    ) -> None:
        self._registry = registry = _checked_registry(registry)
        _check_buckets(duration_buckets)
        self._exception_labels = BoundedLabels("max_exception_types", max_exception_types)
        try:
            self._events = Counter(
                "rmq_events",
                "Events of messages.",
                ("queue", "operation", "outcome", "exception_type"),
                registry=registry,
            )
            self._durations = Histogram(
                "rmq_event_duration_seconds",
                "Duration of a publish, of a wait for a message, or since the claim of the message.",
                ("queue", "operation"),
                buckets=duration_buckets,
                registry=registry,
            )
            self._deliveries = Histogram(
                "rmq_delivery_count",
                "How often a message was delivered, counted when a handler gets it.",
                ("queue",),
                buckets=DELIVERY_BUCKETS,
                registry=registry,
            )
        except ValueError as error:
            raise ConfigurationError(
                f"the metrics cannot be registered: {error}; make one QueueMetrics for each registry, and pass its "
                "on_event to all queues"
            ) from error
        # The children of the metrics, because `labels()` costs more than counting.
        self._event_children: dict[tuple[str, str, str, str | None], Any] = {}
        self._duration_children: dict[tuple[str, str], Any] = {}
        self._delivery_children: dict[str, Any] = {}
        self._stats: StatsCollector | None = None

    def on_event(self, event: QueueEvent) -> None:
        """Count an event. Pass this method to queues, sync or async, as ``on_event``."""
        key = (event.queue, event.operation, event.outcome, event.exception_type)
        counter = self._event_children.get(key)
        if counter is None:
            counter = self._event_child(key)
        counter.inc()
        if event.duration_seconds is not None:
            durations = self._duration_children.get(key[:2])
            if durations is None:
                durations = self._durations.labels(event.queue, str(event.operation))
                self._duration_children[key[:2]] = durations
            durations.observe(event.duration_seconds)
        if event.operation is EventOperation.CLAIM and event.outcome is EventOutcome.SUCCESS and event.delivery_count:
            deliveries = self._delivery_children.get(event.queue)
            if deliveries is None:
                deliveries = self._delivery_children[event.queue] = self._deliveries.labels(event.queue)
            deliveries.observe(event.delivery_count)

    def _event_child(self, key: tuple[str, str, str, str | None]) -> Any:
        queue, operation, outcome, exception_type = key
        label = "" if exception_type is None else self._exception_labels(exception_type)
        counter = self._events.labels(queue, str(operation), str(outcome), label)
        if label == (exception_type or ""):  # there is no limit to the names that share "other"
            self._event_children[key] = counter
        return counter

    def watch(self, queue: Any, *, max_tenants: int | None = None, timeout_seconds: float = 2.0) -> None:
        """Show how many messages a sync queue has at each scrape; see `StatsCollector.watch`."""
        self._collector().watch(queue, max_tenants=max_tenants, timeout_seconds=timeout_seconds)

    async def keep_watching(
        self,
        queue: Any,
        *,
        max_tenants: int | None = None,
        interval_seconds: float = 5.0,
        timeout_seconds: float = 2.0,
    ) -> None:
        """Show how many messages an asyncio queue has; see `StatsCollector.keep_watching`."""
        await self._collector().keep_watching(
            queue, max_tenants=max_tenants, interval_seconds=interval_seconds, timeout_seconds=timeout_seconds
        )

    def _collector(self) -> StatsCollector:
        if self._stats is None:
            self._stats = StatsCollector(registry=self._registry)
        return self._stats


class StatsCollector(Collector):
    """Shows how many messages queues have in each state, as `stats()` returns it.

    `QueueMetrics.watch` makes one for you. If you have several processes, make one in only one of them, because all
    would show the same numbers. If a queue cannot be read, ``rmq_stats_up`` is 0, its gauges are left out, and the
    scrape continues.

    Args:
        registry: Where the metrics are registered; by default the global registry.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None) -> None:
        self._pollers = StatsPollers()
        _checked_registry(registry).register(self)

    def watch(self, queue: Any, *, max_tenants: int | None = None, timeout_seconds: float = 2.0) -> None:
        """Read a sync queue at each scrape.

        Args:
            queue: The queue to read.
            max_tenants: Show the pending messages of this many tenants by name, and of all others as "other". Everybody
                who can read the metrics can then read these names. By default tenants are not shown.
            timeout_seconds: How long a scrape waits for the queue.

        Raises:
            ConfigurationError: This is not a sync queue, or a queue of this name is watched already.
        """
        self._pollers.watch(queue, max_tenants, timeout_seconds)

    async def keep_watching(
        self,
        queue: Any,
        *,
        max_tenants: int | None = None,
        interval_seconds: float = 5.0,
        timeout_seconds: float = 2.0,
    ) -> None:
        """Read an asyncio queue every ``interval_seconds``. Run this in a task of its event loop, until you cancel it.

        A scrape shows the latest numbers, and ``rmq_stats_age_seconds`` how old they are. The other arguments are those
        of `watch`.
        """
        await self._pollers.keep_watching(queue, max_tenants, interval_seconds, timeout_seconds)

    def forget(self, name: str) -> None:
        """Stop watching the queue of this name."""
        self._pollers.forget(name)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, so that a registry does not read any queue."""
        return list(_Families().all)

    def collect(self) -> Iterator[Metric]:
        """Read each queue once, and return its metrics."""
        yield from metrics_of(self._pollers)


def metrics_of(pollers: Iterable[StatsPoller]) -> list[Metric]:
    """Return the metrics of queues, each from a sample of now."""
    families = _Families()
    for poller in pollers:
        families.add(poller.name, poller.sample())
        for error, count in list(poller.failures.items()):
            families.failures.add_metric((poller.name, error), count)
    return list(families.all)


def text_of(pollers: Iterable[StatsPoller]) -> bytes:
    """Return the metrics of queues in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(metrics_of(pollers)))
    return generate_latest(registry)


class _Collected(Collector):
    """Metrics that were collected already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        gauge = GaugeMetricFamily
        self.up = gauge("rmq_stats_up", "Whether the queue could be read.", labels=("queue",))
        self.duration = gauge("rmq_stats_duration_seconds", "How long reading the queue took.", labels=("queue",))
        self.age = gauge("rmq_stats_age_seconds", "How long ago the queue was read.", labels=("queue",))
        self.failures = CounterMetricFamily(
            "rmq_stats_failures", "How often the queue could not be read.", labels=("queue", "exception_type")
        )
        self.messages = gauge("rmq_messages", "Number of messages in each state.", labels=("queue", "state"))
        self.oldest = gauge(
            "rmq_oldest_pending_seconds", "Age of the oldest pending message, 0 if there is none.", labels=("queue",)
        )
        self.workers = gauge("rmq_workers", "Number of processes that run a consumer loop.", labels=("queue",))
        self.paused = gauge("rmq_paused", "Whether the queue is paused.", labels=("queue",))
        self.tenants = gauge("rmq_tenants", "Number of tenants with pending messages.", labels=("queue",))
        self.tenant_pending = gauge(
            "rmq_tenant_pending", "Number of pending messages of a tenant.", labels=("queue", "tenant")
        )
        self.all: tuple[Metric, ...] = (
            *(self.up, self.duration, self.age, self.failures),
            *(self.messages, self.oldest, self.workers, self.paused, self.tenants, self.tenant_pending),
        )

    def add(self, name: str, sample: StatsSample) -> None:
        queue = (name,)
        self.up.add_metric(queue, 0 if sample.stats is None else 1)
        self.duration.add_metric(queue, sample.duration_seconds)
        self.age.add_metric(queue, sample.age_seconds)
        if sample.stats is None:
            return
        for state in STATES:
            self.messages.add_metric((name, state), getattr(sample.stats, state))
        self.oldest.add_metric(queue, sample.stats.oldest_pending_seconds or 0.0)
        if sample.workers is not None:
            self.workers.add_metric(queue, sample.workers)
        self.paused.add_metric(queue, 1 if sample.stats.paused else 0)
        self.tenants.add_metric(queue, sample.stats.tenants)
        for tenant, count in sample.tenants.items():
            self.tenant_pending.add_metric((name, tenant), count)


def _check_buckets(buckets: Any) -> None:
    is_sequence = isinstance(buckets, Sequence) and not isinstance(buckets, str | bytes)
    if not is_sequence or not buckets or not all(isinstance(one, int | float) and one > 0 for one in buckets):
        raise ConfigurationTypeError("duration_buckets must be a sequence of positive numbers, the smallest first")
    if list(buckets) != sorted(set(buckets)):
        raise ConfigurationError("duration_buckets must be in ascending order, each once")


def _checked_registry(registry: Any) -> CollectorRegistry:
    if registry is None:
        return REGISTRY
    if not isinstance(registry, CollectorRegistry):
        raise ConfigurationTypeError(
            f"registry must be a prometheus_client.CollectorRegistry, not {type(registry).__name__}"
        )
    return registry
