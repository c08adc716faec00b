"""The cost of metrics and tracing: microseconds per counted event, and per message in a traced queue.

    python -m bench.metrics

CPU time of this process, without the server: the median of interleaved rounds, so that a busy moment affects all.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client import CollectorRegistry

from redis_message_queue import EventOperation, EventOutcome, QueueEvent, RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.metrics.opentelemetry import QueueMeter, QueueTracing
from redis_message_queue.metrics.prometheus import QueueMetrics

ROUNDS, EVENTS, MESSAGES = 15, 5_000, 300
ACK = QueueEvent(
    queue="q",
    operation=EventOperation.ACK,
    outcome=EventOutcome.SUCCESS,
    message_id="ab" * 16,
    delivery_count=1,
    duration_seconds=0.01,
)


def microseconds(work: Callable[[], None], times: int) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) / times * 1e6


def in_turn(works: dict[str, Callable[[], None]], times: int) -> dict[str, float]:
    """The median of each, in microseconds per call."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            found[name].append(microseconds(work, times))
    return {name: statistics.median(each) for name, each in found.items()}


def emit_to(listener: Callable[[QueueEvent], None]) -> Callable[[], None]:
    def work() -> None:
        for _ in range(EVENTS):
            listener(ACK)

    return work


def events() -> None:
    """Print the cost of `on_event`."""
    prometheus = QueueMetrics(registry=CollectorRegistry())
    meter = QueueMeter(meter_provider=MeterProvider([InMemoryMetricReader()]))
    where = "files of several processes" if "PROMETHEUS_MULTIPROC_DIR" in os.environ else "memory"
    listeners = {f"Prometheus, in {where}": prometheus.on_event, "OpenTelemetry meter": meter.on_event}
    for name, figure in in_turn({name: emit_to(each) for name, each in listeners.items()}, EVENTS).items():
        print(f"{name:<42} {figure:7.1f} µs per event", flush=True)


def through(queue: RedisMessageQueue) -> Callable[[], None]:
    def work() -> None:
        for _ in range(MESSAGES):
            queue.publish("message")
            with queue.process_message():
                pass

    return work


def messages() -> None:
    """Print the cost of publishing and processing a message, as a ratio to a queue without an observer."""
    with EmbeddedRedis() as server, server.client() as client:
        metrics = QueueMetrics(registry=CollectorRegistry())
        queues = {
            "no observer": RedisMessageQueue("plain", client=client),
            "on_event that does nothing": RedisMessageQueue("events", client=client, on_event=lambda event: None),
            "Prometheus": RedisMessageQueue("metrics", client=client, on_event=metrics.on_event),
            "get_headers": RedisMessageQueue("headers", client=client, get_headers=lambda: {"traceparent": "x" * 55}),
            "tracing, nothing sampled": QueueTracing(tracer_provider=TracerProvider(ALWAYS_OFF)).trace(
                RedisMessageQueue("unsampled", client=client)
            ),
            "tracing, everything recorded": QueueTracing(tracer_provider=TracerProvider()).trace(
                RedisMessageQueue("traced", client=client)
            ),
        }
        figures = in_turn({name: through(queue) for name, queue in queues.items()}, MESSAGES)
    plain = figures["no observer"]
    for name, figure in figures.items():
        print(f"{name:<42} {figure:7.0f} µs per message, {figure / plain:.2f} of a plain queue", flush=True)


def main() -> None:
    events()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        return
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": directory}
        subprocess.run([sys.executable, "-m", "bench.metrics"], env=environment, check=True)
    messages()


if __name__ == "__main__":
    main()
