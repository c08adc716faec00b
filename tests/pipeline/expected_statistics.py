"""The figures of a report by a plain loop over the events: slow, obvious, and written without a look at Spark."""

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from redis_message_queue.spark.jobs.statistics import ReportStatistics

UNITS = {"minute": 60_000_000, "second": 1_000_000}
OUTCOMES = {"acked", "handed_off", "failed", "retried", "discarded"}
FINAL = {"acked", "handed_off", "failed", "dead", "expired", "dropped", "discarded", "cancelled"}
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
    "discarded": "dropped",
    "cancelled": "dropped",
}
COUNTS = tuple(dict.fromkeys(NAMES.values()))


def quantile(values: list[int], percent: int) -> float | None:
    """The nearest rank: the smallest value that at least so many percent are not above, in seconds."""
    if not values:
        return None
    return sorted(values)[-(-len(values) * percent // 100) - 1] / 1_000_000


def spread(name: str, values: list[int]) -> dict[str, Any]:
    """The least and the greatest value that a quantile may be: of many values it may be off by some ranks."""
    off = 1 if len(values) > 200 else 0
    return {
        f"{name}_p{one}": (quantile(values, one - off), quantile(values, min(100, one + off))) for one in (50, 95, 99)
    }


class Levels:
    """How many messages are in each state, told event by event."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[str, int | None]] = {}  # with the time from which a delayed one waits
        self.removed: Counter[str] = Counter()

    def tell(self, event: dict[str, Any]) -> None:
        kind, message_id = event["event"], event["id"]
        if kind in ("purged", "deleted"):
            taken_from = {"pending": "waiting", "delayed": "delayed", "orphans": "in_flight"}
            if event["target"] in taken_from:
                self.removed[taken_from[event["target"]]] += event["count"]
        elif kind in ("published", "redriven", "requeued"):
            self.states[message_id] = ("waiting", None)
        elif kind in ("delayed", "retried"):
            self.states[message_id] = ("delayed", event["due"])
        elif kind in ("claimed", "reclaimed"):
            self.states[message_id] = ("in_flight", None)
        elif kind in FINAL:
            self.states.pop(message_id, None)

    def before(self, end: int) -> dict[str, int]:
        """At the last moment before this time."""
        now = Counter(
            "waiting" if state == "delayed" and due is not None and due < end else state
            for state, due in self.states.values()
        )
        return {state: now[state] - self.removed[state] for state in ("waiting", "in_flight", "delayed")}


def levels(events: list[dict[str, Any]], size: int) -> dict[int, dict[str, int]]:
    """The levels at the end of each minute or second in which something happened, or could have: a delay ended."""
    found, now = {}, Levels()
    timed = [one for one in events if one["event"] != "gap"]
    places = {one["at"] // size for one in timed}
    last = max(places, default=0)
    places |= {one["due"] // size for one in timed if "due" in one and one["due"] // size <= last}
    told = 0
    for place in sorted(places):
        while told < len(timed) and timed[told]["at"] // size <= place:
            now.tell(timed[told])
            told += 1
        found[place] = now.before((place + 1) * size)
    return found


def changed(level: dict[int, dict[str, int]]) -> list[int]:
    """The minutes or seconds after which the levels are others than before."""
    before: dict[str, int] = dict.fromkeys(("waiting", "in_flight", "delayed"), 0)
    found = []
    for place, now in level.items():
        if now != before:
            found.append(place)
        before = now
    return found


def figures(events: list[dict[str, Any]], since: int | None = None, until: int | None = None) -> dict[str, Any]:
    """Totals, and rows by minute, tenant, error type and signature, keyed as they are found.

    What is outside of the window counts for times, levels, demand and accounts, and for nothing else.
    """
    since, until = since or 0, until or 2**62
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
    handlers: defaultdict[Any, list[int]] = defaultdict(list)
    buffers: defaultdict[Any, list[int]] = defaultdict(list)
    demand: Counter[str] = Counter()
    served: Counter[str] = Counter()
    asked_by: dict[str, str] = {}
    withdrawn: set[str] = set()
    delays: dict[str, int] = {}  # of messages that nobody has claimed
    purged_delayed: Counter[str] = Counter()
    last_at = max((event["at"] for event in events if event["event"] != "gap"), default=0)
    level = {unit: levels(events, size) for unit, size in UNITS.items()}
    for event in events:
        kind = event["event"]
        if kind == "gap":
            continue
        at, message_id, tenant = event["at"], event["id"], event["tenant"]
        inside = since <= at < until
        spans = [(unit, at // size) for unit, size in UNITS.items()]
        here = [units[unit][place] for unit, place in spans] if inside else []
        if kind in NAMES and inside:
            for counter in (totals, *here, tenants[tenant]):
                counter[NAMES[kind]] += 1
        if kind in ("purged", "deleted") and event["target"] in ("pending", "delayed", "orphans"):
            purged += event["count"]
            for counter in here:
                counter["removed"] += event["count"]
        if at < until:
            is_first = kind in ("claimed", "reclaimed") and not (event["count"] > 1 or message_id in claimed)
            served[tenant] += inside and is_first
            demand[tenant] += (kind in ("published", "redriven")) - (is_first and not inside)
            if kind in ("purged", "deleted") and event["target"] in ("pending", "delayed", "orphans"):
                demand[tenant] -= event["count"] if event["target"] != "orphans" else 0  # somebody had these
                purged_delayed[tenant] += event["count"] if event["target"] == "delayed" else 0
            if kind in ("published", "redriven"):
                asked_by[message_id] = tenant
            if kind in FINAL and kind != "cancelled" and message_id not in claimed:
                demand[tenant] -= at < since  # it was gone when the window began
            if kind == "cancelled" and message_id not in claimed:
                withdrawn.add(message_id)
            if kind != "duplicate":
                delays.pop(message_id, None)
            if kind == "delayed" and message_id not in claimed:
                delays[message_id] = event["due"]
        if kind == "claimed" and ready.get(message_id) is not None and inside:
            wait = max(0, at - ready[message_id])
            for where in ("all", *spans, ("tenant", tenant)):
                waits[where].append(wait)
        is_outcome = kind in OUTCOMES or (kind == "dead" and event.get("error_type"))
        for counter in (totals, *here) if is_outcome and inside else ():
            counter["outcomes"] += 1
            counter["errors"] += kind not in ("acked", "handed_off", "discarded")
        if is_outcome and begun.get(message_id) is not None and inside:
            for where in ("all", *spans, ("tenant", tenant)):
                works[where].append(at - begun[message_id])
                handlers[where].append(event.get("handled", at - begun[message_id]))
                if "started" in event:
                    buffers[where].append(max(0, event["started"] - begun[message_id]))
        if kind in ("published", "redriven", "requeued"):
            ready[message_id] = at
        if kind in ("delayed", "retried"):
            ready[message_id] = event["due"]
        if kind in ("claimed", "reclaimed"):
            ready[message_id], begun[message_id] = None, at
            redelivered += inside and (event["count"] > 1 or message_id in claimed)
            claimed.add(message_id)
        if kind in FINAL or kind in ("retried", "requeued"):
            begun[message_id] = None
        if kind in ("failed", "retried", "dead") and event.get("error_type") and inside:
            failures[event["error_type"]][kind] += 1
        if kind == "dead" and inside:
            dead[event.get("error_type"), event["reason"]] += 1
        if kind in ("published", "redriven"):
            entered.add(message_id)
        if message_id and kind != "duplicate":
            states[message_id] = kind
    for unit, size in UNITS.items():
        whole = [place for place in changed(level[unit]) if since <= place * size and (place + 1) * size <= until]
        units[unit] |= {place: Counter() for place in whole if place not in units[unit]}
    demand.subtract(Counter(asked_by[one] for one in withdrawn if one in asked_by))
    not_due = Counter(
        asked_by[one] for one, due in delays.items() if due >= min(until, last_at + 1) and one in asked_by
    )
    demand.subtract({tenant: max(0, count - purged_delayed[tenant]) for tenant, count in not_due.items()})
    delivered = sum(counter["delivered"] for counter in tenants.values())
    parts = [served[tenant] / asked for tenant, asked in demand.items() if asked > 0]
    published = sum(event["event"] == "published" and since <= event["at"] < until for event in events)
    final = Counter(state for state in states.values() if state in FINAL)
    return {
        "totals": {name: totals[name] for name in (*COUNTS, "outcomes", "errors")}
        | spread("waiting", waits["all"])
        | spread("processing", works["all"])
        | spread("handler", handlers["all"])
        | spread("prefetch", buffers["all"]),
        **{
            f"{unit}s": {
                datetime.fromtimestamp(place * UNITS[unit] / 1e6, UTC): {
                    name: counter[name] for name in (*COUNTS, "removed", "outcomes", "errors")
                }
                | spread("waiting", waits[unit, place])
                | spread("processing", works[unit, place])
                | spread("handler", handlers[unit, place])
                | spread("prefetch", buffers[unit, place])
                | level[unit][place]
                | {"backlog": sum(level[unit][place].values())}
                for place, counter in counters.items()
            }
            for unit, counters in units.items()
        },
        "tenants": {
            tenant: {name: counter[name] for name in COUNTS}
            | spread("waiting", waits["tenant", tenant])
            | spread("handler", handlers["tenant", tenant])
            | {"served": served[tenant], "demand": demand[tenant], "share": counter["delivered"] / delivered}
            for tenant, counter in tenants.items()
        },
        "failures": {name: dict(counter) for name, counter in failures.items()},
        "dead_letters": dict(dead),
        "fairness": sum(parts) ** 2 / len(parts) / sum(one**2 for one in parts),
        "duplicate_ratio": totals["duplicates"] / (totals["duplicates"] + published),
        "redelivery_ratio": redelivered / totals["delivered"],
        "accounts": {
            "entered": len(entered),
            "entered_unseen": len(states.keys() - entered),
            "purged": purged,
            "lost": 0,
            "remaining": sum(state not in FINAL for state in states.values()) - purged,
        }
        | {name: final[name] for name in FINAL},
    }


def agrees(found: ReportStatistics, events: list[dict], since: int | None = None, until: int | None = None) -> None:
    """Every figure of the report is the loop's. Quantiles of few values are exact."""
    told = figures(events, since, until)
    summary, tables = found.summary, found.tables
    same(summary, told["totals"])
    for name in ("fairness", "duplicate_ratio", "redelivery_ratio"):
        assert summary[name] == pytest.approx(told[name])
    told["over_time"] = told[f"{summary['unit']}s"]
    for table, key in {"over_time": "start", "tenants": "tenant"}.items():
        # A tenant that only waits has a row without deliveries.
        rows = {row[key] or "": row for row in tables[table] if table != "tenants" or (row[key] or "") in told[table]}
        assert rows.keys() == told[table].keys()
        for place, row in told[table].items():
            same(rows[place], row)
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


def same(found: dict[str, Any], told: dict[str, Any]) -> None:
    for name, value in told.items():
        if isinstance(value, tuple) and value[0] is not None:
            assert value[0] * 0.999999 <= found[name] <= value[1] * 1.000001, (name, found[name], value)
        else:
            assert found[name] == (None if isinstance(value, tuple) else pytest.approx(value)), name
