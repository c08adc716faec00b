"""The numbers of queues through OpenTelemetry's meter: what `prometheus` offers, for whoever collects them that way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from redis_message_queue.errors import ConfigurationTypeError
from redis_message_queue.events import QueueEvent
from redis_message_queue.metrics.labels import Capped
from redis_message_queue.metrics.look import STATES, AwaitedLook, BlockingLook, Sight, Watched, name_of, refuse_twice

_INSTRUMENTATION = "redis_message_queue"
_FRESH_SECONDS = 0.2


class QueueMeter:
    """Counts and times what happens, for any number of queues of both colours.

    ``meter_provider`` is the global one unless you say otherwise. ``max_exception_types`` bounds the attribute
    ``error.type``: the first so many classes have their name, all further ones are "other".
    """

    def __init__(self, *, meter_provider: MeterProvider | None = None, max_exception_types: int = 20) -> None:
        meter = metrics.get_meter(_INSTRUMENTATION, meter_provider=meter_provider)
        self._exceptions = Capped("max_exception_types", max_exception_types)
        self._watched: dict[str, Watched] = {}
        self._seen: dict[str, Sight] = {}
        self._events = meter.create_counter("rmq.events", unit="{event}", description="What happened to messages.")
        self._durations = meter.create_histogram(
            "rmq.event.duration",
            unit="s",
            description="How long it took: the publish, the wait for a message, or the time since it was claimed.",
        )
        meter.create_observable_gauge(
            "rmq.messages", [self._messages], unit="{message}", description="How many messages are where."
        )
        meter.create_observable_gauge(
            "rmq.oldest_pending",
            [self._oldest],
            unit="s",
            description="Age of the oldest that waits, 0 without one.",
        )

    def on_event(self, event: QueueEvent) -> None:
        """Count an event: for the option of that name."""
        attributes = {
            "messaging.destination.name": event.queue,
            "rmq.operation": str(event.operation),
            "rmq.outcome": str(event.outcome),
        }
        if event.duration_seconds is not None:
            self._durations.record(event.duration_seconds, attributes)
        if event.exception_type is not None:
            attributes = {**attributes, "error.type": self._exceptions(event.exception_type)}
        self._events.add(1, attributes)

    def watch(self, queue: Any, *, timeout_seconds: float = 2.0) -> None:
        """Observe the lengths of a blocking queue when metrics are collected; a look that fails leaves them out."""
        name = name_of(queue)
        if isinstance(queue, AsyncioQueue):
            raise ConfigurationTypeError(
                f"the queue {name!r} is an asyncio queue, which cannot be awaited while metrics are collected; start a "
                "task with keep_watching(queue) in its loop"
            )
        refuse_twice(name, self._watched)
        self._watched[name] = BlockingLook(queue, None, timeout_seconds)

    async def keep_watching(self, queue: Any, *, interval_seconds: float = 5.0, timeout_seconds: float = 2.0) -> None:
        """The same for an asyncio queue, in a task of its loop, until that is cancelled."""
        name = name_of(queue)
        if not isinstance(queue, AsyncioQueue):
            raise ConfigurationTypeError(f"the queue {name!r} is a blocking one; use watch(queue)")
        refuse_twice(name, self._watched)
        look = AwaitedLook(queue, None)
        self._watched[name] = look
        try:
            await look.keep_looking(interval_seconds, timeout_seconds)
        finally:
            self._watched.pop(name, None)

    def _sights(self) -> list[Sight]:
        """One look serves all the gauges of a collection."""
        sights = []
        for look in list(self._watched.values()):
            sight = self._seen.get(look.name)
            if sight is None or sight.age > _FRESH_SECONDS:
                sight = self._seen[look.name] = look.look()
            if sight.stats is not None:
                sights.append(sight)
        return sights

    def _messages(self, options: CallbackOptions) -> Iterable[Observation]:
        for sight in self._sights():
            for state in STATES:
                attributes = {"messaging.destination.name": sight.queue, "rmq.state": state}
                yield Observation(getattr(sight.stats, state), attributes)

    def _oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        for sight in self._sights():
            age = sight.stats.oldest_pending_seconds if sight.stats is not None else None
            yield Observation(age or 0.0, {"messaging.destination.name": sight.queue})
