"""Queues as Prometheus sees them: events counted and timed as they happen, lengths looked up when it asks.

metrics = QueueMetrics()
queue = RedisMessageQueue("orders", client=client, on_event=metrics.on_event)
metrics.watch(queue)
prometheus_client.start_http_server(9000)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.events import EventOperation, EventOutcome, QueueEvent
from redis_message_queue.metrics.extra import require
from redis_message_queue.metrics.labels import Capped
from redis_message_queue.metrics.look import STATES, AwaitedLook, BlockingLook, Sight, Watched, name_of, refuse_twice

require("prometheus", "prometheus_client")

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram  # noqa: E402  after the check
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

__all__ = ["QueueMetrics", "StatsCollector"]

# From a quick publish on the same machine to a handler that takes an hour.
DURATION_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
DELIVERY_BUCKETS = (1, 2, 3, 5, 10, 25)


class QueueMetrics:
    """Counts and times what happens, for any number of queues; threads and processes may share it.

    ``registry`` is where the metrics are, the default one of `prometheus_client` unless you say otherwise; make one
    object for a registry. ``max_exception_types`` bounds the label of that name: the first so many classes have their
    name, all further ones are "other". ``duration_buckets`` are in seconds.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        max_exception_types: int = 20,
        duration_buckets: Sequence[float] = DURATION_BUCKETS,
    ) -> None:
        self._registry = registry = _checked(registry)
        _check_buckets(duration_buckets)
        self._exceptions = Capped("max_exception_types", max_exception_types)
        try:
            self._events = Counter(
                "rmq_events",
                "What happened to messages.",
                ("queue", "operation", "outcome", "exception_type"),
                registry=registry,
            )
            self._durations = Histogram(
                "rmq_event_duration_seconds",
                "How long it took: the publish, the wait for a message, or the time since it was claimed.",
                ("queue", "operation"),
                buckets=duration_buckets,
                registry=registry,
            )
            self._deliveries = Histogram(
                "rmq_delivery_count",
                "How often a message has been delivered when a handler gets it.",
                ("queue",),
                buckets=DELIVERY_BUCKETS,
                registry=registry,
            )
        except ValueError as error:
            raise ConfigurationError(
                f"the metrics cannot be made in this registry: {error}; make one QueueMetrics for each registry, and "
                "give its on_event to all queues"
            ) from error
        # What `labels()` finds, kept: it costs more than the counting itself.
        self._counters: dict[tuple[str, str, str, str | None], Any] = {}
        self._timers: dict[tuple[str, str], Any] = {}
        self._counted: dict[str, Any] = {}
        self._stats: StatsCollector | None = None

    def on_event(self, event: QueueEvent) -> None:
        """Count an event: for the option of that name, of queues of both colours."""
        key = (event.queue, event.operation, event.outcome, event.exception_type)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counter(key)
        counter.inc()
        if event.duration_seconds is not None:
            timer = self._timers.get(key[:2])
            if timer is None:
                timer = self._timers[key[:2]] = self._durations.labels(event.queue, str(event.operation))
            timer.observe(event.duration_seconds)
        if event.operation is EventOperation.CLAIM and event.outcome is EventOutcome.SUCCESS and event.delivery_count:
            counted = self._counted.get(event.queue)
            if counted is None:
                counted = self._counted[event.queue] = self._deliveries.labels(event.queue)
            counted.observe(event.delivery_count)

    def _counter(self, key: tuple[str, str, str, str | None]) -> Any:
        queue, operation, outcome, kind = key
        label = "" if kind is None else self._exceptions(kind)
        counter = self._events.labels(queue, str(operation), str(outcome), label)
        if label == (kind or ""):  # the names behind "other" are without number
            self._counters[key] = counter
        return counter

    def watch(self, queue: Any, *, max_tenants: int | None = None, timeout_seconds: float = 2.0) -> None:
        """Show the lengths of a queue too, asked for when Prometheus scrapes; see `StatsCollector.watch`."""
        self._collector().watch(queue, max_tenants=max_tenants, timeout_seconds=timeout_seconds)

    async def keep_watching(
        self,
        queue: Any,
        *,
        max_tenants: int | None = None,
        interval_seconds: float = 5.0,
        timeout_seconds: float = 2.0,
    ) -> None:
        """The same for an asyncio queue, in a task of its loop; see `StatsCollector.keep_watching`."""
        await self._collector().keep_watching(
            queue, max_tenants=max_tenants, interval_seconds=interval_seconds, timeout_seconds=timeout_seconds
        )

    def _collector(self) -> StatsCollector:
        if self._stats is None:
            self._stats = StatsCollector(registry=self._registry)
        return self._stats


class StatsCollector(Collector):
    """Shows how many messages are where, as `stats()` says.

    `QueueMetrics.watch` makes one by itself. With several processes one of them should have it, because all would show
    the same numbers. A look that fails makes ``rmq_stats_up`` 0 and leaves the gauges of that queue out; the scrape
    goes on.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None) -> None:
        self._watched: dict[str, Watched] = {}
        _checked(registry).register(self)

    def watch(self, queue: Any, *, max_tenants: int | None = None, timeout_seconds: float = 2.0) -> None:
        """Look at this queue at each scrape, for no longer than ``timeout_seconds``.

        With ``max_tenants`` the waiting messages of tenants are shown by name: the first so many names, all others
        together as "other". Names of tenants are then in the metrics for everybody to read.
        """
        name = name_of(queue)
        if isinstance(queue, AsyncioQueue):
            raise ConfigurationTypeError(
                f"the queue {name!r} is an asyncio queue, which a scrape cannot await; start a task with "
                "keep_watching(queue) in its loop"
            )
        refuse_twice(name, self._watched)
        self._watched[name] = BlockingLook(queue, max_tenants, timeout_seconds)

    async def keep_watching(
        self,
        queue: Any,
        *,
        max_tenants: int | None = None,
        interval_seconds: float = 5.0,
        timeout_seconds: float = 2.0,
    ) -> None:
        """Look at this asyncio queue every ``interval_seconds``, until the task is cancelled.

        A scrape shows what was seen last, and ``rmq_stats_age_seconds`` how long ago that was.
        """
        name = name_of(queue)
        if not isinstance(queue, AsyncioQueue):
            raise ConfigurationTypeError(f"the queue {name!r} is a blocking one; use watch(queue)")
        refuse_twice(name, self._watched)
        look = AwaitedLook(queue, max_tenants)
        self._watched[name] = look
        try:
            await look.keep_looking(interval_seconds, timeout_seconds)
        finally:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Look at the queue of this name no more."""
        self._watched.pop(name, None)

    def describe(self) -> Iterable[Metric]:
        """The names, without a look: making a collector asks Redis nothing."""
        return list(_Families().all)

    def collect(self) -> Iterator[Metric]:
        """What a scrape gets: one look at each queue."""
        families = _Families()
        for look in list(self._watched.values()):
            families.add(look.look())
            for trouble, count in list(look.failures.items()):
                families.failures.add_metric((look.name, trouble), count)
        yield from families.all


class _Families:
    """The gauges of one scrape."""

    def __init__(self) -> None:
        gauge = GaugeMetricFamily
        self.up = gauge("rmq_stats_up", "Whether the last look at the queue succeeded.", labels=("queue",))
        self.took = gauge("rmq_stats_duration_seconds", "How long the look took.", labels=("queue",))
        self.age = gauge("rmq_stats_age_seconds", "How long ago it was.", labels=("queue",))
        self.failures = CounterMetricFamily(
            "rmq_stats_failures",
            "Looks that failed.",
            labels=("queue", "exception_type"),
        )
        self.messages = gauge("rmq_messages", "How many messages are where.", labels=("queue", "state"))
        self.oldest = gauge(
            "rmq_oldest_pending_seconds",
            "Age of the oldest waiting message, 0 without one.",
            labels=("queue",),
        )
        self.tenants = gauge("rmq_tenants", "How many tenants have waiting messages.", labels=("queue",))
        self.lines = gauge("rmq_tenant_pending", "How many messages of a tenant wait.", labels=("queue", "tenant"))
        self.all: tuple[Metric, ...] = (
            *(self.up, self.took, self.age, self.failures),
            *(self.messages, self.oldest, self.tenants, self.lines),
        )

    def add(self, sight: Sight) -> None:
        name = (sight.queue,)
        self.up.add_metric(name, 0 if sight.stats is None else 1)
        self.took.add_metric(name, sight.took)
        self.age.add_metric(name, sight.age)
        if sight.stats is None:
            return
        for state in STATES:
            self.messages.add_metric((sight.queue, state), getattr(sight.stats, state))
        self.oldest.add_metric(name, sight.stats.oldest_pending_seconds or 0.0)
        self.tenants.add_metric(name, sight.stats.tenants)
        for tenant, count in sight.tenants.items():
            self.lines.add_metric((sight.queue, tenant), count)


def _check_buckets(buckets: Any) -> None:
    whole = isinstance(buckets, Sequence) and not isinstance(buckets, str | bytes)
    if not whole or not buckets or not all(isinstance(one, int | float) and one > 0 for one in buckets):
        raise ConfigurationTypeError("duration_buckets must be a sequence of positive numbers, the smallest first")
    if list(buckets) != sorted(set(buckets)):
        raise ConfigurationError("duration_buckets must grow from one to the next")


def _checked(registry: Any) -> CollectorRegistry:
    if registry is None:
        return REGISTRY
    if not isinstance(registry, CollectorRegistry):
        raise ConfigurationTypeError(
            f"registry must be a prometheus_client.CollectorRegistry, not {type(registry).__name__}"
        )
    return registry
