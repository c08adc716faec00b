"""The Grafana dashboard uses metrics, labels and values that exist."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from redis_message_queue import EventOperation, EventOutcome, QueueEvent
from redis_message_queue.cli.worker.health import OUTCOMES
from redis_message_queue.cli.worker.health import metrics as worker_metrics
from redis_message_queue.metrics.prometheus import QueueMetrics
from redis_message_queue.metrics.stats_poller import STATES
from tests.contract.shells import Shell, sync_only
from tests.metrics.worker_health import worker_health

pytestmark = pytest.mark.topic("Metrics")


DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "redis-message-queue.json"
SUBJECTS = (
    *("Throughput", "Depth", "Age of the oldest waiting message", "Publish", "Processing", "Failures by type"),
    *("Dead letters", "Duplicates", "Redeliveries", "Lost leases"),
)
KNOWN_VALUES = {
    "operation": set(map(str, EventOperation)),
    "outcome": {*map(str, EventOutcome), *OUTCOMES},
    "state": set(STATES),
}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    """The dashboard as JSON."""
    board: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return board


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    """Every query to Prometheus."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def selectors(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Metric, label and value of each condition."""
    for query in queries(dashboard):
        for metric, conditions in re.findall(r"(rmq_\w+)\{([^}]*)\}", query):
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', conditions):
                yield metric, label, value


@pytest.mark.promise("The dashboard queries only metrics that the exporter has.")
@sync_only
async def test_every_metric_of_the_dashboard_exists_with_its_labels(
    shell: Shell, dashboard: dict[str, Any], dead_port: int
) -> None:
    """Compared with a scrape after every event has happened once."""
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
    of_workers = text_string_to_metric_families("".join(worker_metrics(worker_health())))
    for family in [*registry.collect(), *of_workers]:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    asked = {name for query in queries(dashboard) for name in re.findall(r"\brmq_\w+", query)}
    assert asked <= labels.keys()
    assert {(metric, label) for metric, label, _ in selectors(dashboard) if label not in labels[metric]} == set()
    shown = {name for name in labels if not name.endswith(("_created", "_sum"))}
    assert shown - asked == {
        "rmq_stats_age_seconds",
        "rmq_stats_duration_seconds",
        "rmq_event_duration_seconds_count",
        "rmq_worker_handler_duration_seconds_count",
    }


@pytest.mark.promise("The dashboard queries only metrics that the exporter has.")
def test_every_value_of_the_dashboard_can_occur(dashboard: dict[str, Any]) -> None:
    """A misspelt operation would be an empty panel."""
    for _, label, value in selectors(dashboard):
        if label in KNOWN_VALUES:
            assert set(value.split("|")) <= KNOWN_VALUES[label], (label, value)


@pytest.mark.promise("The dashboard queries only metrics that the exporter has.")
def test_every_panel_has_a_place_a_title_and_a_description(dashboard: dict[str, Any]) -> None:
    """Panels do not overlap, and none refers to one Grafana server."""
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
