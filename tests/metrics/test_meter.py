"""Metrics of queues through an OpenTelemetry meter."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from redis_message_queue import ConfigurationError, ConfigurationTypeError, EventOperation, EventOutcome, QueueEvent
from redis_message_queue.metrics.opentelemetry import QueueMeter
from tests.contract.shells import Shell, asyncio_only, fail, sync_only, take, until

pytestmark = pytest.mark.topic("Metrics")


class Reading:
    """A meter, and a reader of its metrics."""

    def __init__(self, **options: Any) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.meter = QueueMeter(meter_provider=self._provider, **options)

    def points(self, name: str) -> dict[tuple[str, ...], Any]:
        """The points of a metric by the values of their attributes, without the queue's name."""
        data = self._reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        labels = {**(point.attributes or {})}
                        assert labels.pop("messaging.destination.name") == "q"
                        found[tuple(map(str, labels.values()))] = point
        return found


@pytest.fixture
def reading() -> Reading:
    return Reading()


@pytest.mark.promise("`QueueMetrics` counts and times every event by queue, operation, outcome and exception type.")
async def test_events_are_counted_and_timed(shell: Shell, reading: Reading) -> None:
    """The numbers are those of Prometheus, without the text of an error."""
    queue = shell.queue(wait=0, on_event=reading.meter.on_event)
    await queue.publish_many(["a", "b"])
    await take(queue)
    await fail(queue, LookupError("secret"))
    counts = {labels: point.value for labels, point in reading.points("rmq.events").items()}
    assert counts["publish", "success"] == 2
    assert counts["failed", "failure", "LookupError"] == 1
    assert "secret" not in str(counts)
    assert reading.points("rmq.event.duration")["ack", "success"].count == 1


@pytest.mark.promise("A scrape reports the lengths from `stats()`; for an async queue a task reads them.")
@sync_only
async def test_a_sync_queue_is_read_when_metrics_are_collected(shell: Shell, reading: Reading) -> None:
    """The numbers are those of stats()."""
    queue = shell.queue(wait=0)
    reading.meter.watch(queue.queue)
    await queue.publish("a")
    assert reading.points("rmq.messages")[("pending",)].value == 1
    assert reading.points("rmq.oldest_pending")[()].value > 0


@pytest.mark.promise("A failing or hanging `stats()` is a metric, never an error of the scrape.")
@sync_only
async def test_a_queue_that_cannot_be_read_is_left_out(shell: Shell, reading: Reading, dead_port: int) -> None:
    """The reader gets no exception."""
    reading.meter.watch(shell.queue(client=shell.dead_client(dead_port), retry_budget_seconds=0).queue)
    assert reading.points("rmq.messages") == {}


@pytest.mark.promise("A scrape reports the lengths from `stats()`; for an async queue a task reads them.")
@asyncio_only
async def test_a_task_reads_an_asyncio_queue(shell: Shell, reading: Reading) -> None:
    """Until it is cancelled."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    task = asyncio.create_task(reading.meter.keep_watching(queue.queue, interval_seconds=0.01))
    assert await until(lambda: (found := reading.points("rmq.messages")) and found[("pending",)].value == 1)
    with pytest.raises(ConfigurationTypeError, match="asyncio queue"):
        reading.meter.watch(queue.queue)
    with pytest.raises(ConfigurationError, match="watched here already"):
        await reading.meter.keep_watching(queue.queue)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert reading.points("rmq.messages") == {}


@pytest.mark.promise(
    "Labels are bounded: surplus exception types and tenants become `other`; error texts and ids are never labels."
)
def test_exception_classes_beyond_the_limit_are_other() -> None:
    """The number of attributes stays bounded."""
    reading = Reading(max_exception_types=1)
    for kind in ("A", "B", "C"):
        reading.meter.on_event(
            QueueEvent(queue="q", operation=EventOperation.FAILED, outcome=EventOutcome.FAILURE, exception_type=kind)
        )
    assert {labels[-1]: point.value for labels, point in reading.points("rmq.events").items()} == {"A": 1, "other": 2}
