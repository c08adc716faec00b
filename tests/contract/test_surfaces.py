"""Every surface works with a queue of one part and of three, in both shells where there are two."""

import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.datasource import ReadAllAvailable

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.metrics.opentelemetry import QueueTracing
from redis_message_queue.metrics.prometheus import QueueMetrics
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.spark.source import QueueStreamReader
from tests import fork_server
from tests.contract.shells import Awaited, Shell
from tests.contract.test_run_queues import run_queues
from tests.dashboard.running import served
from tests.pipeline.test_source import Told, rows

pytestmark = pytest.mark.topic("Partitions")

WORDS = list("abcdefghi")


@dataclass
class Order:
    """The payload of a typed queue."""

    name: str


def filled(shell: Shell, parts: int, **options: Any) -> Any:
    return shell.queue("orders", wait=0, partitions=parts, **options)


async def handled(shell: Shell, queue: Any) -> Counter[str]:
    """The payloads of all messages of a queue, taken in each way: a block, a batch and a loop."""
    seen: list[Any] = []
    async with queue.process_message() as message:
        seen.append(message)
    async with queue.process_messages(4) as batch:
        seen += [one.payload for one in batch]
    await queue.run(shell.callback(lambda one: seen.append(one.payload)), until_empty=True, concurrency=2)
    return Counter(one.decode() if isinstance(one, bytes) else getattr(one, "name", one) for one in seen)


async def trace_messages(shell: Shell, parts: int) -> None:
    """Each consumer span links to a producer span, and each message has both."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    plain = filled(shell, parts, deduplication=True)
    queue = shell._facade(QueueTracing(tracer_provider=provider).trace(plain.queue))
    assert [await queue.publish(word) for word in WORDS[:3]] == [True] * 3
    assert await queue.publish_many(WORDS[2:]) == [False] + [True] * 6
    assert not await plain.publish("a")  # the same key leads to the same partition, traced or not
    assert await handled(shell, queue) == Counter(WORDS)
    spans = exporter.get_finished_spans()
    sent = {span.context.span_id for span in spans if span.kind is SpanKind.PRODUCER and span.context is not None}
    processed = [span for span in spans if span.kind is SpanKind.CONSUMER]
    links = [link.context.span_id for span in processed for link in span.links]
    assert len(sent) == 4 and len(links) == 9 and set(links) <= sent


async def count_events(shell: Shell, parts: int) -> None:
    """The counters have every message once, whatever its part."""
    registry = CollectorRegistry()
    metrics = QueueMetrics(registry=registry)
    queue = filled(shell, parts, on_event=shell.callback(metrics.on_event))
    await queue.publish_many(WORDS)
    if shell.name == "sync":
        metrics.watch(queue.queue)
        assert registry.get_sample_value("rmq_messages", {"queue": "orders", "state": "pending"}) == 9
    await handled(shell, queue)
    labels = {"queue": "orders", "outcome": "success", "exception_type": ""}
    counts = [
        registry.get_sample_value("rmq_events_total", labels | {"operation": name}) for name in ("publish", "ack")
    ]
    assert counts == [9, 9]


async def encode_types(shell: Shell, parts: int) -> None:
    """Messages of a type are delivered as that type, and what has another shape becomes a dead letter."""
    queue = filled(shell, parts, codec=Order)
    await queue.publish_many([Order(word) for word in WORDS])
    await filled(shell, parts).publish("{}")
    assert await handled(shell, queue) == Counter(WORDS)
    (dead,) = await Awaited(queue).records()
    assert dead.payload in ("{}", b"{}")


async def serve_tenants(shell: Shell, parts: int) -> None:
    """Each tenant has its messages, its length and its turns."""
    queue = filled(shell, parts)
    for word in WORDS:
        await Awaited(Awaited(queue)._thing.tenant(word)).publish(word)
    assert await Awaited(queue).tenants() == dict.fromkeys(WORDS, 1)
    assert await Awaited(Awaited(queue)._thing.tenant("a")).length() == 1
    assert await handled(shell, queue) == Counter(WORDS)


async def run_several(shell: Shell, parts: int) -> None:
    """Both queues are emptied."""
    orders, mails = filled(shell, parts), shell.queue("mails", wait=0, partitions=4 - parts)
    await orders.publish_many(WORDS)
    await mails.publish_many(WORDS)
    seen: list[str] = []
    handler = shell.callback(lambda one: seen.append(one.queue))
    await run_queues(shell, {orders: 2, mails: 1}, handler, until_empty=True)
    assert Counter(seen) == {"orders": 9, "mails": 9}


SURFACES = [trace_messages, count_events, encode_types, serve_tenants, run_several]


@pytest.mark.promise(
    "Tracing, metrics, typed payloads, tenants and `run_queues` work with a queue of any number of partitions."
)
@pytest.mark.both_shells
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("surface", SURFACES)
async def test_a_surface_works_with_any_number_of_parts(
    shell: Shell, surface: Callable[[Shell, int], Awaitable[None]], parts: int
) -> None:
    await surface(shell, parts)


def run_worker(server: EmbeddedRedis, queue: RedisMessageQueue, tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text("def handle(message):\n    open(message.payload, 'x').close()\n")
    command = [sys.executable, "-m", "redis_message_queue", "worker", "handlers:handle", "orders", "--until-empty"]
    ended = fork_server.run(command, cwd=tmp_path, env=os.environ | {"REDIS_URL": server.url})
    assert ended.returncode == 0, ended.stderr
    assert {file.name for file in tmp_path.iterdir() if not file.suffix} >= set(WORDS)


def show_dashboard(server: EmbeddedRedis, queue: RedisMessageQueue, tmp_path: Path) -> None:
    with served(server.url, "orders") as browser:
        page = browser.get("/queue", params={"name": "orders"})
        listed = browser.get("/messages", params={"name": "orders", "source": "pending"})
    assert page.status_code == 200 and listed.text.count('href="/message?') == 9


def read_with_spark(server: EmbeddedRedis, queue: RedisMessageQueue, tmp_path: Path) -> None:
    reader = QueueStreamReader(SourceOptions(url=server.url, queue="orders", consumer_group="g"), Told())
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert sorted(rows(reader, start, end)) == WORDS
        reader.commit(end)
    finally:
        reader.stop()


@pytest.mark.promise("`rmq worker`, the dashboard and Spark work with a queue of any number of partitions.")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("surface", [run_worker, show_dashboard, read_with_spark])
def test_a_program_works_with_any_number_of_parts(
    clean_server: EmbeddedRedis, text_client: Any, tmp_path: Path, surface: Callable[..., None], parts: int
) -> None:
    queue = RedisMessageQueue("orders", client=text_client, partitions=parts)
    queue.publish_many(WORDS)
    surface(clean_server, queue, tmp_path)
    assert queue.stats().pending == (9 if surface is show_dashboard else 0)
