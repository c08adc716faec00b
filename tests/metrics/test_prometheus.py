"""What Prometheus scrapes: events counted and timed, lengths looked up, labels bounded, over threads and processes."""

import asyncio
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from redis_message_queue import (
    ConfigurationError,
    ConfigurationTypeError,
    EventOperation,
    EventOutcome,
    GatewayContractError,
    QueueEvent,
    RetryPolicy,
)
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.metrics.prometheus import QueueMetrics, StatsCollector
from tests.contract.shells import (
    Awaited,
    Shell,
    asyncio_only,
    claim_and_die,
    fail,
    silent_gateway,
    sync_only,
    take,
    until,
)

CREW = Path(__file__).with_name("crew.py")


class Scrape:
    """Metrics in a registry of their own, and what a scrape of it says."""

    def __init__(self, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.metrics = QueueMetrics(registry=self.registry, **options)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def count(self, operation: str, outcome: str = "success", kind: str = "", queue: str = "q") -> float | None:
        return self.value("rmq_events_total", queue=queue, operation=operation, outcome=outcome, exception_type=kind)

    def messages(self, state: str, queue: str = "q") -> float | None:
        return self.value("rmq_messages", queue=queue, state=state)


@pytest.fixture
def scrape() -> Scrape:
    return Scrape()


def event(operation: EventOperation = EventOperation.FAILED, **details: Any) -> QueueEvent:
    return QueueEvent(**{"queue": "q", "operation": operation, "outcome": EventOutcome.FAILURE} | details)


# Events


async def test_every_event_is_counted_and_timed(shell: Shell, scrape: Scrape) -> None:
    """By queue, operation, outcome and the class of the exception; durations by queue and operation."""
    queue = shell.queue(
        wait=0, on_event=scrape.metrics.on_event, deduplication=True, retry_policy=RetryPolicy(max_attempts=2)
    )
    for message in ("a", "a", "b"):
        await queue.publish(message)
    await take(queue)
    await fail(queue, LookupError("secret"))
    await take(queue)
    assert (scrape.count("publish"), scrape.count("publish_dedup_hit", "skipped")) == (2, 1)
    assert (scrape.count("claim"), scrape.count("ack"), scrape.count("retried")) == (2, 1, 1)
    assert scrape.count("failed", "failure", "LookupError") == 1
    assert scrape.count("claim_empty", "skipped") == 1
    for operation, times in {"publish": 2, "claim": 2, "ack": 1, "failed": 1}.items():
        labels = {"queue": "q", "operation": operation}
        assert scrape.value("rmq_event_duration_seconds_count", **labels) == times
        assert (scrape.value("rmq_event_duration_seconds_sum", **labels) or 0) > 0
    assert b"secret" not in generate_openmetrics(scrape.registry)


async def test_redeliveries_show_in_the_delivery_count(shell: Shell, scrape: Scrape) -> None:
    """The first bucket has the first deliveries, the rest are repetitions."""
    queue = shell.queue(wait=0, on_event=scrape.metrics.on_event)
    await queue.publish("m")
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    assert scrape.value("rmq_delivery_count_bucket", queue="q", le="1.0") == 1
    assert scrape.value("rmq_delivery_count_count", queue="q") == 2
    assert scrape.count("claim_reclaim") == 1


async def test_one_object_serves_many_queues(shell: Shell, scrape: Scrape) -> None:
    """Their names tell them apart."""
    for name in ("one", "other"):
        await shell.queue(name, on_event=scrape.metrics.on_event).publish("m")
    assert [scrape.count("publish", queue=name) for name in ("one", "other")] == [1, 1]


def test_classes_of_exceptions_beyond_the_first_are_others() -> None:
    """Whoever makes classes without end fills no database; what has a name keeps it."""
    scrape = Scrape(max_exception_types=2)
    for kind in ("A", "B", "C", "D", "C", "A"):
        scrape.metrics.on_event(event(exception_type=kind))
    counts = {kind: scrape.count("failed", "failure", kind) for kind in ("A", "B", "C", "D", "other")}
    assert counts == {"A": 2, "B": 1, "C": None, "D": None, "other": 3}


def test_texts_of_errors_and_ids_are_no_labels(scrape: Scrape) -> None:
    """Neither a message nor what an exception says can be read from a scrape."""
    scrape.metrics.on_event(event(error=ValueError("secret"), exception_type="ValueError", message_id="ab" * 16))
    said = generate_openmetrics(scrape.registry)
    assert b"secret" not in said and b"abab" not in said and b"ValueError" in said


# Lengths


@sync_only
async def test_a_scrape_shows_how_many_messages_are_where(shell: Shell, scrape: Scrape) -> None:
    """As stats() says at that moment."""
    queue = shell.queue(wait=0, enable_completed_queue=True, enable_failed_queue=True, max_delivery_count=1)
    scrape.metrics.watch(queue.queue)
    await queue.publish_many(["dies", "good", "bad", "waits", "in flight"])
    await queue.publish("later", delay_seconds=3600)
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    await fail(queue, ValueError())
    await claim_and_die(queue)
    states = ("pending", "processing", "delayed", "completed", "failed", "dead_letters")
    assert [scrape.messages(state) for state in states] == [1, 1, 1, 1, 1, 1]
    assert scrape.value("rmq_stats_up", queue="q") == 1
    assert (scrape.value("rmq_oldest_pending_seconds", queue="q") or 0) > 0
    assert scrape.value("rmq_tenants", queue="q") == 0
    while await take(queue) is not None:
        pass
    assert scrape.value("rmq_oldest_pending_seconds", queue="q") == 0


@sync_only
async def test_a_failed_look_is_a_metric_and_the_scrape_goes_on(shell: Shell, scrape: Scrape, dead_port: int) -> None:
    """The queue that cannot be reached has no lengths; the other has, and failures are counted by their class."""
    lost = shell.queue("lost", client=shell.dead_client(dead_port), retry_budget_seconds=0)
    scrape.metrics.watch(lost.queue)
    scrape.metrics.watch(shell.queue("found").queue)
    said = generate_openmetrics(scrape.registry).decode()
    assert 'rmq_stats_up{queue="lost"} 0.0' in said and 'rmq_stats_up{queue="found"} 1.0' in said
    assert 'rmq_stats_failures_total{exception_type="ConnectionError",queue="lost"} 1.0' in said
    assert 'rmq_messages{queue="lost"' not in said and 'rmq_messages{queue="found"' in said


@sync_only
async def test_a_scrape_does_not_wait_for_a_server_that_hangs(shell: Shell, start_server: Any) -> None:
    """However patient the queue is; looks do not pile up, and when the server is back so are the lengths."""
    server: EmbeddedRedis = start_server()
    scrape = Scrape()
    with server.client() as client:
        queue = shell.queue(client=client, retry_budget_seconds=3600)
        scrape.metrics.watch(queue.queue, timeout_seconds=0.05)
        scrape.messages("pending")
        server.pause()
        try:
            for _ in range(3):
                assert scrape.value("rmq_stats_up", queue="q") == 0
            failures = scrape.value("rmq_stats_failures_total", queue="q", exception_type="TimeoutError")
            assert failures is not None and failures >= 3
        finally:
            server.resume()
        assert await until(lambda: scrape.value("rmq_stats_up", queue="q") == 1)


@asyncio_only
async def test_a_task_keeps_the_lengths_of_an_asyncio_queue(shell: Shell, scrape: Scrape) -> None:
    """A scrape from any thread shows what was seen last, and how long ago; when the task ends they are gone."""
    queue = shell.queue(wait=0)
    await queue.publish("m", tenant="acme")
    task = asyncio.create_task(scrape.metrics.keep_watching(queue.queue, interval_seconds=0.01, max_tenants=5))
    assert await until(lambda: scrape.messages("pending") == 1)
    await take(queue)
    assert await until(lambda: scrape.messages("pending") == 0)
    assert await asyncio.to_thread(scrape.value, "rmq_stats_up", queue="q") == 1
    assert scrape.value("rmq_stats_age_seconds", queue="q") is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert scrape.messages("pending") is None


@asyncio_only
async def test_a_task_survives_looks_that_fail(shell: Shell, scrape: Scrape, dead_port: int) -> None:
    """It says so and looks again."""
    queue = shell.queue(client=shell.dead_client(dead_port), retry_budget_seconds=0)
    task = asyncio.create_task(scrape.metrics.keep_watching(queue.queue, interval_seconds=0.01))
    labels = {"queue": "q", "exception_type": "ConnectionError"}
    assert await until(lambda: (scrape.value("rmq_stats_failures_total", **labels) or 0) >= 2)
    assert scrape.value("rmq_stats_up", queue="q") == 0
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@sync_only
async def test_tenants_are_shown_only_if_asked_for_and_the_late_ones_together(shell: Shell, scrape: Scrape) -> None:
    """Each name is a time series; with a cap they stay few."""
    queue, other = shell.queue(wait=0), shell.queue("other", wait=0)
    for tenant, count in {"a": 1, "b": 2, "c": 3, "d": 4}.items():
        for target in (queue, other):
            await target.publish_many(["m"] * count, tenant=tenant)
    scrape.metrics.watch(queue.queue, max_tenants=2)
    scrape.metrics.watch(other.queue)
    named = [scrape.value("rmq_tenant_pending", queue="q", tenant=name) for name in ("a", "b", "c", "other")]
    assert named == [1, 2, None, 7]
    assert scrape.value("rmq_tenants", queue="other") == 4
    assert 'rmq_tenant_pending{queue="other"' not in generate_openmetrics(scrape.registry).decode()


@sync_only
async def test_the_metrics_can_be_served_as_prometheus_reads_them(shell: Shell, scrape: Scrape) -> None:
    """Over HTTP, in its own format."""
    queue = shell.queue(wait=0, on_event=scrape.metrics.on_event)
    scrape.metrics.watch(queue.queue)
    await queue.publish("m")
    httpd, thread = start_http_server(0, addr="127.0.0.1", registry=scrape.registry)
    try:
        said = fetched(f"http://127.0.0.1:{httpd.server_port}/metrics")
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
    names = {family.name for family in text_string_to_metric_families(said)}
    assert {"rmq_events", "rmq_event_duration_seconds", "rmq_messages", "rmq_stats_up"} <= names


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


# Several processes


@pytest.mark.parametrize("how", ["spawned", "forked"])
def test_processes_add_their_counts_up(how: str, clean_server: EmbeddedRedis, tmp_path: Path) -> None:
    """In the multiprocess mode of prometheus_client; one of them shows the lengths. Also counts of those that ended."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONWARNINGS": "error"}
    said = subprocess.run(
        [sys.executable, str(CREW), how, clean_server.url], env=environment, capture_output=True, text=True, timeout=120
    )
    assert said.returncode == 0, said.stderr
    samples = {
        (sample.name, sample.labels.get("operation") or sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(said.stdout)
        for sample in family.samples
    }
    assert samples["rmq_events_total", "publish"] == 30
    assert samples["rmq_events_total", "ack"] == 30
    assert samples["rmq_event_duration_seconds_count", "ack"] == 30
    assert samples["rmq_messages", "pending"] == 0
    assert samples["rmq_delivery_count_count", None] == 30


# Bad input


def test_one_registry_takes_one_object() -> None:
    """The second would count into the same names; the error says what to do."""
    scrape = Scrape()
    with pytest.raises(ConfigurationError, match="make one QueueMetrics for each registry"):
        QueueMetrics(registry=scrape.registry)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"registry": "default"}, "registry must be a prometheus_client.CollectorRegistry, not str"),
        ({"max_exception_types": 0}, "max_exception_types must be 1 or more"),
        ({"max_exception_types": True}, "max_exception_types must be an int"),
        ({"duration_buckets": ()}, "duration_buckets must be a sequence of positive numbers"),
        ({"duration_buckets": "12"}, "duration_buckets must be a sequence of positive numbers"),
        ({"duration_buckets": (2, 1)}, "duration_buckets must grow"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], words: str) -> None:
    """And leave the registry as it was."""
    registry = CollectorRegistry()
    with pytest.raises(ConfigurationError, match=words):
        QueueMetrics(**{"registry": registry} | options)
    QueueMetrics(registry=registry)


async def test_what_cannot_be_watched_is_refused(shell: Shell) -> None:
    """A queue of the other colour, twice the same name, a custom gateway, and what is no queue."""
    stats = StatsCollector(registry=CollectorRegistry())

    def watch(queue: Any) -> None:
        if shell.name == "sync":
            stats.watch(queue)
        else:
            asyncio.run_coroutine_threadsafe(stats.keep_watching(queue), asyncio.get_running_loop())

    queue = shell.queue(wait=0).queue
    watch(queue)
    await until(lambda: bool(stats._watched))
    wrong: list[tuple[Any, type[Exception], str]] = [
        ("q", ConfigurationTypeError, "queue must be a RedisMessageQueue, not str"),
        (shell.queue("g", gateway=silent_gateway(shell)).queue, GatewayContractError, "what operators do"),
        (queue, ConfigurationError, "watched here already"),
    ]
    for given, error, words in wrong:
        with pytest.raises(error, match=words):
            stats.watch(given) if shell.name == "sync" else await stats.keep_watching(given)
    other = stats.watch if shell.name == "asyncio" else stats.keep_watching
    with pytest.raises(ConfigurationTypeError, match="asyncio queue" if shell.name == "asyncio" else "blocking one"):
        await Awaited(Ways(other)).watch(queue)


class Ways:
    """A function in either colour, as a method that can be awaited."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch


def test_making_a_collector_asks_redis_nothing() -> None:
    """Its names are known without a look, so a registry can refuse a second one."""
    registry = CollectorRegistry()
    StatsCollector(registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        StatsCollector(registry=registry)
