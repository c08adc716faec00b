"""Metrics of queues for an OpenTelemetry meter: the same numbers as for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from redis_message_queue.metrics.labels import BoundedLabels
from redis_message_queue.metrics.stats_poller import STATES, StatsPollers, StatsSample
from redis_message_queue.values.errors import ConfigurationTypeError
from redis_message_queue.values.events import QueueEvent

_INSTRUMENTATION = "redis_message_queue"
_MAX_SAMPLE_AGE_SECONDS = 0.2


class QueueMeter:
    """Counts and times the events of any number of queues, sync and async.

    Args:
        meter_provider: Where the metrics go; by default the global provider.
        max_exception_types: How many exception classes the attribute ``error.type`` names; further ones are "other".

    Raises:
        ConfigurationError: An option is invalid.
    """

    def __init__(self, *, meter_provider: MeterProvider | None = None, max_exception_types: int = 20) -> None:
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise ConfigurationTypeError(
                f"meter_provider must be an opentelemetry.metrics.MeterProvider, not {type(meter_provider).__name__}"
            )
        meter = metrics.get_meter(_INSTRUMENTATION, meter_provider=meter_provider)
        self._exception_labels = BoundedLabels("max_exception_types", max_exception_types)
        self._pollers = StatsPollers()
        self._latest: dict[str, StatsSample] = {}
        self._events = meter.create_counter("rmq.events", unit="{event}", description="Events of messages.")
        self._durations = meter.create_histogram(
            "rmq.event.duration",
            unit="s",
            description="Duration of a publish, of a wait for a message, or since the claim of the message.",
        )
        meter.create_observable_gauge(
            "rmq.messages", [self._messages], unit="{message}", description="Number of messages in each state."
        )
        meter.create_observable_gauge(
            "rmq.oldest_pending",
            [self._oldest],
            unit="s",
            description="Age of the oldest pending message, 0 if there is none.",
        )

    def on_event(self, event: QueueEvent) -> None:
        """Count an event. Pass this method to a queue as ``on_event``."""
        attributes = {
            "messaging.destination.name": event.queue,
            "rmq.operation": str(event.operation),
            "rmq.outcome": str(event.outcome),
        }
        if event.duration_seconds is not None:
            self._durations.record(event.duration_seconds, attributes)
        if event.exception_type is not None:
            attributes = {**attributes, "error.type": self._exception_labels(event.exception_type)}
        self._events.add(1, attributes)

    def watch(self, queue: Any, *, timeout_seconds: float = 2.0) -> None:
        """Observe how many messages a sync queue has, whenever metrics are collected.

        If the queue cannot be read within ``timeout_seconds``, its gauges are left out.
        """
        self._pollers.watch(queue, None, timeout_seconds)

    async def keep_watching(self, queue: Any, *, interval_seconds: float = 5.0, timeout_seconds: float = 2.0) -> None:
        """Observe how many messages an asyncio queue has. Run this in a task of its event loop, until you cancel it."""
        await self._pollers.keep_watching(queue, None, interval_seconds, timeout_seconds)

    def _samples(self) -> list[StatsSample]:
        """Return one sample for each queue; all gauges of a collection share it."""
        samples = []
        for poller in self._pollers:
            sample = self._latest.get(poller.name)
            if sample is None or sample.age_seconds > _MAX_SAMPLE_AGE_SECONDS:
                sample = self._latest[poller.name] = poller.sample()
            samples.append(sample)
        return samples

    def _messages(self, options: CallbackOptions) -> Iterable[Observation]:
        for sample in self._samples():
            for state in STATES if sample.stats is not None else ():
                attributes = {"messaging.destination.name": sample.queue, "rmq.state": state}
                yield Observation(getattr(sample.stats, state), attributes)

    def _oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        for sample in self._samples():
            if sample.stats is not None:
                age = sample.stats.oldest_pending_seconds or 0.0
                yield Observation(age, {"messaging.destination.name": sample.queue})
