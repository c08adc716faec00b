"""The figures of a report by a plain loop over the events: slow, obvious, and written without a look at Spark."""

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from redis_message_queue.spark.jobs.statistics import ReportStatistics

UNITS = {"minute": 60_000_000, "second": 1_000_000}
OUTCOMES = {"acked", "handed_off", "failed", "retried"}
FINAL = {"acked", "handed_off", "failed", "dead", "expired", "dropped"}
NAMES = {
    "published": "published",
    "redriven": "published",
    "duplicate": "duplicates",
    "claimed": "delivered",
    "reclaimed": "delivered",
    "acked": "acked",
    "handed_off": "acked",
    "failed": "failed",
    "retried": "retried",
    "dead": "dead",
    "expired": "expired",
    "dropped": "dropped",
}
COUNTS = tuple(dict.fromkeys(NAMES.values()))


def quantile(values: list[int], percent: int) -> float | None:
    """The nearest rank: the smallest value that at least so many percent are not above, in seconds."""
    if not values:
        return None
    return sorted(values)[-(-len(values) * percent // 100) - 1] / 1_000_000


def spread(name: str, values: list[int]) -> dict[str, Any]:
    return {f"{name}_p{one}": quantile(values, one) for one in (50, 95, 99)}


def figures(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals, and rows by minute, tenant, error type and signature, keyed as they are found."""
    ready: dict[str, int | None] = {}
    begun: dict[str, int | None] = {}
    totals: Counter[str] = Counter()
    units: dict[str, defaultdict[int, Counter[str]]] = {unit: defaultdict(Counter) for unit in UNITS}
    tenants: defaultdict[str, Counter[str]] = defaultdict(Counter)
    waits: defaultdict[Any, list[int]] = defaultdict(list)
    works: defaultdict[Any, list[int]] = defaultdict(list)
    failures: defaultdict[str, Counter[str]] = defaultdict(Counter)
    dead: Counter[tuple[Any, Any]] = Counter()
    states: dict[str, str] = {}
    entered, claimed, purged, redelivered = set(), set(), 0, 0
    for event in events:
        kind = event["event"]
        if kind == "gap":
            continue
        at, message_id, tenant = event["at"], event["id"], event["tenant"]
        spans = [(unit, at // size) for unit, size in UNITS.items()]
        here = [units[unit][place] for unit, place in spans]
        if kind in NAMES:
            for counter in (totals, *here, tenants[tenant]):
                counter[NAMES[kind]] += 1
        if kind in ("purged", "deleted") and event["target"] in ("pending", "delayed", "orphans"):
            purged += event["count"]
            for counter in here:
                counter["removed"] += event["count"]
        if kind == "claimed" and ready.get(message_id) is not None:
            wait = max(0, at - ready[message_id])
            for where in ("all", *spans, ("tenant", tenant)):
                waits[where].append(wait)
        if (kind in OUTCOMES or (kind == "dead" and event.get("error_type"))) and begun.get(message_id) is not None:
            for where in ("all", *spans):
                works[where].append(at - begun[message_id])
        if kind in ("published", "redriven", "requeued"):
            ready[message_id] = at
        if kind in ("delayed", "retried"):
            ready[message_id] = event["due"]
        if kind in ("claimed", "reclaimed"):
            ready[message_id], begun[message_id] = None, at
            redelivered += event["count"] > 1 or message_id in claimed
            claimed.add(message_id)
        if kind in FINAL or kind in ("retried", "requeued"):
            begun[message_id] = None
        if kind in ("failed", "retried", "dead") and event.get("error_type"):
            failures[event["error_type"]][kind] += 1
        if kind == "dead":
            dead[event.get("error_type"), event["reason"]] += 1
        if kind in ("published", "redriven"):
            entered.add(message_id)
        if message_id and kind != "duplicate":
            states[message_id] = kind
    served = [counter["delivered"] for counter in tenants.values()]
    final = Counter(state for state in states.values() if state in FINAL)
    return {
        "totals": {name: totals[name] for name in COUNTS}
        | spread("waiting", waits["all"])
        | spread("processing", works["all"]),
        **{
            f"{unit}s": {
                datetime.fromtimestamp(place * UNITS[unit] / 1e6, UTC): {
                    name: counter[name] for name in (*COUNTS, "removed")
                }
                | spread("waiting", waits[unit, place])
                | spread("processing", works[unit, place])
                for place, counter in counters.items()
            }
            for unit, counters in units.items()
        },
        "tenants": {
            tenant: {name: counter[name] for name in COUNTS}
            | spread("waiting", waits["tenant", tenant])
            | {"share": counter["delivered"] / sum(served)}
            for tenant, counter in tenants.items()
        },
        "failures": {name: dict(counter) for name, counter in failures.items()},
        "dead_letters": dict(dead),
        "fairness": sum(served) ** 2 / len(served) / sum(one**2 for one in served),
        "duplicate_ratio": totals["duplicates"]
        / (totals["duplicates"] + sum(event["event"] == "published" for event in events)),
        "redelivery_ratio": redelivered / totals["delivered"],
        "accounts": {
            "entered": len(entered),
            "entered_unseen": len(states.keys() - entered),
            "purged": purged,
            "flushed": 0,
            "remaining": sum(state not in FINAL for state in states.values()) - purged,
        }
        | {name: final[name] for name in FINAL},
    }


def agrees(found: ReportStatistics, events: list[dict]) -> None:
    """Every figure of the report is the loop's."""
    told = figures(events)
    summary, tables = found.summary, found.tables
    assert {name: summary[name] for name in told["totals"]} == pytest.approx(told["totals"])
    for name in ("fairness", "duplicate_ratio", "redelivery_ratio"):
        assert summary[name] == pytest.approx(told[name])
    by = {"minutes": "minute", "tenants": "tenant"} | ({"seconds": "second"} if "seconds" in tables else {})
    for table, key in by.items():
        rows = {row[key] or "": row for row in tables[table]}
        assert rows.keys() == told[table].keys()
        for place, row in told[table].items():
            assert {name: rows[place][name] for name in row} == pytest.approx(row), (table, place)
    assert {
        row["error_type"]: {name: row[name] for name in ("failed", "retried", "dead") if row[name]}
        for row in tables["failures"]
    } == told["failures"]
    assert {(row["error_type"], row["reason"]): row["letters"] for row in tables["dead_letters"]} == told[
        "dead_letters"
    ]
    accounts = {row["account"]: row["messages"] for row in tables["conservation"]}
    accounts.pop("foreign")  # it needs a look at the queue
    assert accounts == told["accounts"]
    for table, column in (("tenants", "delivered"), ("failures", "total"), ("dead_letters", "letters")):
        counts = [row[column] for row in tables[table]]
        assert counts == sorted(counts, reverse=True), "the most first"
