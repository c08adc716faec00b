"""The exporter shows all queues of a server, and the alerts fire on what it and `rmq worker` show."""

import asyncio
import operator
import re
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.worker.health import metrics
from redis_message_queue.metrics.exporter import MetricsExporter
from redis_message_queue.metrics.server_queues import ServerQueues
from redis_message_queue.testing import fast_forward
from tests.concurrency import beside, until
from tests.metrics.worker_health import worker_health

pytestmark = pytest.mark.topic("Metrics")

ALERTS = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "alerts.yml"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(url: str, *names: str, times: int = 1, **options: Any) -> Samples:
    """What the exporter of a server shows."""

    async def scrape() -> bytes:
        async with redis.asyncio.Redis.from_url(url) as client:
            settings = {"discover": True, "retry_budget_seconds": 0.2} | options
            exporter = MetricsExporter(ServerQueues(client, names, **settings), max_tenants=2, timeout_seconds=1.0)
            for _ in range(times):
                text = await exporter.scrape()
            return text

    return samples(asyncio.run(scrape()).decode())


def samples(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for each in families for one in each.samples}


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


@pytest.mark.promise("`rmq exporter` shows every queue of a server: its messages, its oldest one, its workers.")
def test_all_queues_of_a_server_are_shown(clean_server, text_client) -> None:
    """Those of the registry and those that were named, as a whole, also with partitions."""
    orders = RedisMessageQueue("orders", client=text_client, partitions=3)
    orders.publish_many(map(str, range(5)))
    orders.publish("six", tenant="acme")
    orders.pause()
    mails = RedisMessageQueue("mails", client=text_client, key_separator="/")
    mails.publish("a", delay_seconds=60)
    text_client.lpush(mails.key.dead_letter, "dead")
    found = scraped(clean_server.url, "named")
    assert value(found, "rmq_messages", queue="orders", state="pending") == 6
    assert value(found, "rmq_tenant_pending", queue="orders", tenant="acme") == 1
    assert (value(found, "rmq_paused", queue="orders"), value(found, "rmq_paused", queue="mails")) == (1, 0)
    assert value(found, "rmq_messages", queue="mails", state="delayed") == 1
    assert value(found, "rmq_messages", queue="mails", state="dead_letters") == 1
    assert value(found, "rmq_workers", queue="mails") == 0
    assert value(found, "rmq_stats_up", queue="named") == 1
    assert value(scraped(clean_server.url, "named", discover=False), "rmq_stats_up", queue="orders") is None


def test_a_connected_worker_is_counted(clean_server, text_client) -> None:
    """While its loop runs."""
    queue = RedisMessageQueue("orders", client=text_client)
    with beside(queue.run, print):
        until(lambda: value(scraped(clean_server.url), "rmq_workers", queue="orders") == 1)
        queue.drain(timeout=0)


@pytest.mark.promise("A scrape of `rmq exporter` succeeds and ends in time while its server is away.")
def test_a_server_that_is_away_is_shown_as_such(dead_port: int) -> None:
    found = scraped(f"redis://127.0.0.1:{dead_port}/0", "orders", "mails", times=2)
    assert (value(found, "rmq_stats_up", queue="orders"), value(found, "rmq_stats_up", queue="mails")) == (0, 0)
    assert sum(count for (name, _), count in found.items() if name == "rmq_stats_failures_total") == 4


# The alerts: a small part of PromQL, evaluated on two scrapes


SELECTOR = r"(rmq_\w+)(?:\{([^}]*)\})?"
COMPARED = re.compile(rf"(?:(delta|increase)\({SELECTOR}\[10m\]\)|{SELECTOR}) ([<>]|==) (\d+)")
SIGNS = {">": operator.gt, "<": operator.lt, "==": operator.eq}


def firing(expression: str, before: Samples, after: Samples) -> list[dict[str, str]]:
    """The labels of each series for which the expression is true."""
    first, *joined = re.split(r" (and|unless) on \(queue\) ", expression)
    found = compared(first, before, after)
    for word, other in zip(joined[::2], joined[1::2], strict=True):
        queues = {one.get("queue") for one in compared(other, before, after)}
        found = [one for one in found if (one.get("queue") in queues) == (word == "and")]
    return found


def compared(expression: str, before: Samples, after: Samples) -> list[dict[str, str]]:
    parsed = COMPARED.fullmatch(expression)
    assert parsed is not None, expression
    function, *selectors, sign, number = parsed.groups()
    metric, conditions = (one for one in (selectors[:2] if function else selectors[2:]))
    wanted = re.findall(r'(\w+)(=~?)"([^"]*)"', conditions or "")
    found = []
    for (name, labels), now in after.items():
        has = dict(labels)
        if name == metric and all(
            re.fullmatch(pattern if kind == "=~" else re.escape(pattern), has.get(label, ""))
            for label, kind, pattern in wanted
        ):
            shown = now - before.get((name, labels), now) if function else now
            if SIGNS[sign](shown, float(number)):
                found.append(has)
    return found


def worker(**situation: Any) -> Samples:
    """What `rmq worker` shows in this situation."""
    return samples("".join(metrics(worker_health(**situation))))


@pytest.mark.promise("Each rule of alerts.yml fires in its situation, and none while all is well.")
def test_the_alerts_fire(clean_server, text_client, dead_port: int) -> None:
    """On scrapes of a real server, and of a worker that reports trouble."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    assert all(
        rule["annotations"]["summary"] and rule["annotations"]["action"] for one in groups for rule in one["rules"]
    )
    orders, paused = (RedisMessageQueue(name, client=text_client) for name in ("orders", "paused"))
    orders.publish("a")
    paused.publish("b")
    paused.pause()
    calm = scraped(clean_server.url) | worker(handled=7, failed=2)
    assert {name: firing(rule, calm, calm) for name, rule in rules.items()} == {name: [] for name in rules}
    fast_forward(text_client, 400)
    text_client.lpush(orders.key.dead_letter, "dead")
    later = scraped(clean_server.url) | scraped(f"redis://127.0.0.1:{dead_port}/0", "lost", discover=False)
    later |= worker(ready=False, restarts=3, longest=4000.0, handled=9, failed=3)
    fired = {name: [one.get("queue", "") for one in firing(rule, calm, later)] for name, rule in rules.items()}
    assert fired == {
        "RmqOldMessages": ["orders"],
        "RmqNoWorker": ["orders", "paused"],
        "RmqDeadLetters": ["orders"],
        "RmqUnreadable": ["lost"],
        "RmqWorkerNotReady": [""],
        "RmqWorkerRestarts": [""],
        "RmqHandlerHangs": [""],
        "RmqFailures": ["orders"],
    }
