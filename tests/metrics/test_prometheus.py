"""What Prometheus scrapes: events, the state of queues, bounded labels, from threads and processes."""

import asyncio
import os
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
from tests import fork_server
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

pytestmark = pytest.mark.topic("Metrics")


PROGRAM = Path(__file__).with_name("counting_processes.py")


class Scrape:
    """Metrics in their own registry, and what a scrape shows."""

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


@pytest.mark.promise("`QueueMetrics` counts and times every event by queue, operation, outcome and exception type.")
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


@pytest.mark.promise("`QueueMetrics` counts and times every event by queue, operation, outcome and exception type.")
async def test_redeliveries_show_in_the_delivery_count(shell: Shell, scrape: Scrape) -> None:
    """The first bucket counts first deliveries, the others count redeliveries."""
    queue = shell.queue(wait=0, on_event=scrape.metrics.on_event)
    await queue.publish("m")
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    assert scrape.value("rmq_delivery_count_bucket", queue="q", le="1.0") == 1
    assert scrape.value("rmq_delivery_count_count", queue="q") == 2
    assert scrape.count("claim_reclaim") == 1


@pytest.mark.promise("`QueueMetrics` counts and times every event by queue, operation, outcome and exception type.")
async def test_one_object_serves_many_queues(shell: Shell, scrape: Scrape) -> None:
    """The label `queue` has their names."""
    for name in ("one", "other"):
        await shell.queue(name, on_event=scrape.metrics.on_event).publish("m")
    assert [scrape.count("publish", queue=name) for name in ("one", "other")] == [1, 1]


@pytest.mark.promise(
    "Labels are bounded: surplus exception types and tenants become `other`; error texts and ids are never labels."
)
def test_exception_classes_beyond_the_limit_are_other() -> None:
    """The number of time series stays bounded, and a class that has its own series keeps it."""
    scrape = Scrape(max_exception_types=2)
    for kind in ("A", "B", "C", "D", "C", "A"):
        scrape.metrics.on_event(event(exception_type=kind))
    counts = {kind: scrape.count("failed", "failure", kind) for kind in ("A", "B", "C", "D", "other")}
    assert counts == {"A": 2, "B": 1, "C": None, "D": None, "other": 3}


@pytest.mark.promise(
    "Labels are bounded: surplus exception types and tenants become `other`; error texts and ids are never labels."
)
def test_error_texts_and_ids_are_not_labels(scrape: Scrape) -> None:
    """A scrape shows neither messages nor the texts of exceptions."""
    scrape.metrics.on_event(event(error=ValueError("secret"), exception_type="ValueError", message_id="ab" * 16))
    said = generate_openmetrics(scrape.registry)
    assert b"secret" not in said and b"abab" not in said and b"ValueError" in said


# The state of queues


@pytest.mark.promise("A scrape reports the lengths from `stats()`; for an async queue a task reads them.")
@sync_only
async def test_a_scrape_shows_how_many_messages_are_in_each_state(shell: Shell, scrape: Scrape) -> None:
    """The numbers are those of stats()."""
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


@pytest.mark.promise("A scrape reports a queue with partitions as a whole, and those partitions that you watch, too.")
@sync_only
async def test_a_scrape_shows_the_whole_and_its_partitions(shell: Shell, scrape: Scrape) -> None:
    queue = shell.queue(partitions=3)
    scrape.metrics.watch(queue.queue)
    for number in range(3):
        part = queue.queue.partition(number)
        scrape.metrics.watch(part)
        part.publish_many(["one"] * (number + 1))
    names = ("q", "q::partition::0", "q::partition::1", "q::partition::2")
    assert [scrape.value("rmq_messages", queue=name, state="pending") for name in names] == [6, 1, 2, 3]


@pytest.mark.promise("A failing or hanging `stats()` is a metric, never an error of the scrape.")
@sync_only
async def test_a_queue_that_cannot_be_read_is_a_metric_and_the_scrape_goes_on(
    shell: Shell, scrape: Scrape, dead_port: int
) -> None:
    """The other queue is shown, and failures are counted by the class of the error."""
    lost = shell.queue("lost", client=shell.dead_client(dead_port), retry_budget_seconds=0)
    scrape.metrics.watch(lost.queue)
    scrape.metrics.watch(shell.queue("found").queue)
    said = generate_openmetrics(scrape.registry).decode()
    assert 'rmq_stats_up{queue="lost"} 0.0' in said and 'rmq_stats_up{queue="found"} 1.0' in said
    assert 'rmq_stats_failures_total{exception_type="ConnectionError",queue="lost"} 1.0' in said
    assert 'rmq_messages{queue="lost"' not in said and 'rmq_messages{queue="found"' in said


@pytest.mark.promise("A failing or hanging `stats()` is a metric, never an error of the scrape.")
@sync_only
async def test_a_scrape_does_not_wait_for_a_server_that_hangs(shell: Shell, start_server: Any) -> None:
    """Whatever the timeouts of the queue are; threads do not pile up, and the numbers come back with the server."""
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


@pytest.mark.promise("A scrape reports the lengths from `stats()`; for an async queue a task reads them.")
@asyncio_only
async def test_a_task_reads_an_asyncio_queue(shell: Shell, scrape: Scrape) -> None:
    """A scrape from any thread shows the latest numbers and their age; after the task they are gone."""
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


@pytest.mark.promise("A failing or hanging `stats()` is a metric, never an error of the scrape.")
@asyncio_only
async def test_a_task_survives_failures(shell: Shell, scrape: Scrape, dead_port: int) -> None:
    """It counts them and tries again."""
    queue = shell.queue(client=shell.dead_client(dead_port), retry_budget_seconds=0)
    task = asyncio.create_task(scrape.metrics.keep_watching(queue.queue, interval_seconds=0.01))
    labels = {"queue": "q", "exception_type": "ConnectionError"}
    assert await until(lambda: (scrape.value("rmq_stats_failures_total", **labels) or 0) >= 2)
    assert scrape.value("rmq_stats_up", queue="q") == 0
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.promise(
    "Labels are bounded: surplus exception types and tenants become `other`; error texts and ids are never labels."
)
@sync_only
async def test_tenants_are_shown_only_on_request_and_beyond_the_limit_as_other(shell: Shell, scrape: Scrape) -> None:
    """Each name is a time series, so their number is bounded."""
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


@pytest.mark.promise("A scrape reports the lengths from `stats()`; for an async queue a task reads them.")
@sync_only
async def test_the_metrics_can_be_served_as_prometheus_reads_them(shell: Shell, scrape: Scrape) -> None:
    """Over HTTP, in the format of Prometheus."""
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


@pytest.mark.promise("The counts of several processes add up.")
@pytest.mark.parametrize("how", ["spawned", "forked"])
def test_processes_add_their_counts_up(how: str, clean_server: EmbeddedRedis, tmp_path: Path) -> None:
    """In the multiprocess mode of prometheus_client, with the counts of processes that have ended."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONWARNINGS": "error"}
    said = fork_server.run([sys.executable, str(PROGRAM), how, clean_server.url], env=environment)
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


@pytest.mark.promise(
    "Invalid options and queues are refused immediately, and creating a collector does not call Redis."
)
def test_one_registry_takes_one_object() -> None:
    """A second one would use the same names; the error says what to do."""
    scrape = Scrape()
    with pytest.raises(ConfigurationError, match="make one QueueMetrics for each registry"):
        QueueMetrics(registry=scrape.registry)


@pytest.mark.promise(
    "Invalid options and queues are refused immediately, and creating a collector does not call Redis."
)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"registry": "default"}, "registry must be a prometheus_client.CollectorRegistry, not str"),
        ({"max_exception_types": 0}, "max_exception_types must be 1 or more"),
        ({"max_exception_types": True}, "max_exception_types must be an int"),
        ({"duration_buckets": ()}, "duration_buckets must be a sequence of positive numbers"),
        ({"duration_buckets": "12"}, "duration_buckets must be a sequence of positive numbers"),
        ({"duration_buckets": (2, 1)}, "duration_buckets must be in ascending order"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    """The registry stays as it was."""
    registry = CollectorRegistry()
    with pytest.raises(ConfigurationError, match=words):
        QueueMetrics(**{"registry": registry} | options)
    QueueMetrics(registry=registry)


@pytest.mark.promise(
    "Invalid options and queues are refused immediately, and creating a collector does not call Redis."
)
async def test_what_cannot_be_watched_is_refused(shell: Shell) -> None:
    """An async queue where a sync one is needed, a second queue of one name, a custom gateway, another object."""
    stats = StatsCollector(registry=CollectorRegistry())

    def watch(queue: Any) -> None:
        if shell.name == "sync":
            stats.watch(queue)
        else:
            asyncio.run_coroutine_threadsafe(stats.keep_watching(queue), asyncio.get_running_loop())

    queue = shell.queue(wait=0).queue
    watch(queue)
    await until(lambda: bool(list(stats._pollers)))
    wrong: list[tuple[Any, type[Exception], str]] = [
        ("q", ConfigurationTypeError, "queue must be a RedisMessageQueue, not str"),
        (shell.queue("g", gateway=silent_gateway(shell)).queue, GatewayContractError, "what operators do"),
        (queue, ConfigurationError, "watched here already"),
    ]
    for given, error, words in wrong:
        with pytest.raises(error, match=words):
            stats.watch(given) if shell.name == "sync" else await stats.keep_watching(given)
    other = stats.watch if shell.name == "asyncio" else stats.keep_watching
    with pytest.raises(ConfigurationTypeError, match="asyncio queue" if shell.name == "asyncio" else "sync queue"):
        await Awaited(Ways(other)).watch(queue)


class Ways:
    """A sync or async function, as a method that can be awaited."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch


@pytest.mark.promise(
    "Invalid options and queues are refused immediately, and creating a collector does not call Redis."
)
def test_making_a_collector_asks_redis_nothing() -> None:
    """A registry knows its names without reading a queue, so it can refuse a second one."""
    registry = CollectorRegistry()
    StatsCollector(registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        StatsCollector(registry=registry)
