"""The dashboard asks for what the exporter has: names, labels and values."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from redis_message_queue import EventOperation, EventOutcome, QueueEvent
from redis_message_queue.metrics.look import STATES
from redis_message_queue.metrics.prometheus import QueueMetrics
from tests.contract.shells import Shell, sync_only

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "redis-message-queue.json"
SUBJECTS = (
    *("Throughput", "Depth", "Age of the oldest waiting message", "Publish", "Processing", "Failures by type"),
    *("Dead letters", "Duplicates", "Redeliveries", "Lost leases"),
)
KNOWN_VALUES = {
    "operation": set(map(str, EventOperation)),
    "outcome": set(map(str, EventOutcome)),
    "state": set(STATES),
}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    """Read as Grafana reads it."""
    board: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return board


def questions(dashboard: dict[str, Any]) -> Iterator[str]:
    """Everything that it asks Prometheus."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def selectors(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Metric, label and value of each condition."""
    for question in questions(dashboard):
        for metric, conditions in re.findall(r"(rmq_\w+)\{([^}]*)\}", question):
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', conditions):
                yield metric, label, value


@sync_only
async def test_every_metric_of_the_dashboard_exists_with_its_labels(
    shell: Shell, dashboard: dict[str, Any], dead_port: int
) -> None:
    """Held against a scrape in which everything has happened once."""
    registry = CollectorRegistry()
    metrics = QueueMetrics(registry=registry)
    for operation, outcome in itertools.product(EventOperation, EventOutcome):
        metrics.on_event(
            QueueEvent(queue="q", operation=operation, outcome=outcome, duration_seconds=1.0, delivery_count=1)
        )
    queue = shell.queue()
    await queue.publish("m", tenant="acme")
    metrics.watch(queue.queue, max_tenants=1)
    metrics.watch(shell.queue("gone", client=shell.dead_client(dead_port), retry_budget_seconds=0).queue)
    labels: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    asked = {name for question in questions(dashboard) for name in re.findall(r"\brmq_\w+", question)}
    assert asked <= labels.keys()
    assert {(metric, label) for metric, label, _ in selectors(dashboard) if label not in labels[metric]} == set()
    shown = {name for name in labels if not name.endswith(("_created", "_sum"))}
    assert shown - asked == {"rmq_stats_age_seconds", "rmq_stats_duration_seconds", "rmq_event_duration_seconds_count"}


def test_every_value_of_the_dashboard_can_occur(dashboard: dict[str, Any]) -> None:
    """An operation that is misspelt would be a panel that stays empty for ever."""
    for _, label, value in selectors(dashboard):
        if label in KNOWN_VALUES:
            assert set(value.split("|")) <= KNOWN_VALUES[label], (label, value)


def test_the_dashboard_is_whole(dashboard: dict[str, Any]) -> None:
    """Each panel has a number, a place and a sentence of its own, and nothing of the server it was made on."""
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    titles = {panel["title"] for panel in panels}
    assert set(SUBJECTS) <= titles
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or (panel["description"] and panel["targets"])
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
