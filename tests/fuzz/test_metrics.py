"""Whatever a queue, a tenant or an exception is called: what Prometheus scrapes can be read, and labels stay few."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redis_message_queue.metrics.meter import QueueMeter
from redis_message_queue.metrics.opentelemetry import QueueTracing
from redis_message_queue.metrics.prometheus import QueueMetrics
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.events import EventOperation, EventOutcome, QueueEvent
from tests.fuzz.effort import examples
from tests.fuzz.values import anything, shown

LIMIT = 3
# A name that was given to a queue or is stored in it: surrogates are refused before.
names = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=20), st.sampled_from(['"', "\\", "\n", 'a"} 1\n#', "\\n"])
)
events = st.builds(
    QueueEvent,
    queue=names,
    operation=st.sampled_from(EventOperation),
    outcome=st.sampled_from(EventOutcome),
    exception_type=st.none() | names,
    duration_seconds=st.none() | st.floats(0, 1e9),
    delivery_count=st.none() | st.integers(0, 10**6),
)


@examples(60, 5_000)
@given(many=st.lists(events, min_size=1, max_size=10))
def test_every_event_is_counted_whatever_the_names_are(many: list[QueueEvent]) -> None:
    """What is scraped parses again to the same names, and all events are in it."""
    registry = CollectorRegistry()
    metrics = QueueMetrics(registry=registry, max_exception_types=LIMIT)
    for event in many:
        metrics.on_event(event)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    counted = [one for family in families for one in family.samples if one.name == "rmq_events_total"]
    assert sum(one.value for one in counted) == len(many)
    assert {one.labels["queue"] for one in counted} == {event.queue for event in many}
    named = {event.exception_type for event in many} - {None, ""}
    assert {one.labels["exception_type"] for one in counted} <= named | {"", "other"}
    assert len({one.labels["exception_type"] for one in counted} - {"", "other"}) <= LIMIT


@pytest.mark.parametrize(
    ("kind", "beside"),
    [
        (QueueMetrics, {"registry": CollectorRegistry}),
        (QueueMeter, {"meter_provider": MeterProvider}),
        (QueueTracing, {}),
    ],
)
def test_every_option(kind: Any, beside: dict[str, Any]) -> None:
    """An option of the wrong type or size is refused by name."""

    @examples(40, 2_000)
    @given(data=st.data())
    def search(data: st.DataObject) -> None:
        option = data.draw(st.sampled_from(list(inspect.signature(kind).parameters)), label="option")
        value = data.draw(anything, label="value")
        try:
            kind(**{name: make() for name, make in beside.items() if name != option} | {option: value})
        except ConfigurationError as error:
            assert option in str(error) or "registered" in str(error), f"{option}={shown(value)}: {error}"

    search()
