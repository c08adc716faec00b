"""The figures of a report, computed by Spark from archived entries.

The definitions, which the page repeats:

- waiting time: from the moment a message could be taken (it was published, its delay or the pause before its retry
  ended, or it was given back) until it was claimed. A message taken over from a lost lease has none: nobody knows when
  its consumer died.
- processing time: from a claim or a takeover until the handler's outcome (acked, handed off, failed, retried, or dead
  with an error).
- quantiles: values that occurred, by nearest rank.
- redelivery: a claim or a takeover that is not the first of its message. The count of deliveries in an entry does not
  tell: an attempt that failed does not use up the deliveries that are meant for crashes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_message_queue.spark.jobs.ledger import Manifest
from redis_message_queue.spark.jobs.progress import OnProgress, Progress
from redis_message_queue.spark.journal import from_microseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = dict[str, Any]
ENTERING = ("published", "redriven")
LEAVING = ("acked", "handed_off", "failed", "dead", "expired", "dropped")
CLAIMS = ("claimed", "reclaimed")
WAITING_TARGETS = ("pending", "delayed", "orphans")  # what is purged there was a message in the queue
_COUNTED = {
    "published": ENTERING,
    "duplicates": ("duplicate",),
    "delivered": CLAIMS,
    "acked": ("acked", "handed_off"),
    "failed": ("failed",),
    "retried": ("retried",),
    "dead": ("dead",),
    "expired": ("expired",),
    "dropped": ("dropped",),
}


def _in(*events: str) -> str:
    return f"event in ({', '.join(repr(one) for one in events)})"


_REMOVED = f"{_in('purged', 'deleted')} and target in {WAITING_TARGETS}"
_OUTCOME = f"({_in('acked', 'handed_off', 'failed', 'retried')} or (event = 'dead' and error_type is not null))"
_BEFORE = "over (partition by id order by serial rows between unbounded preceding and 1 preceding)"
# When a message could be taken next. A claim uses that up, so that an entry lost after it does not lengthen a wait.
_AVAILABLE = (
    f"case when {_in(*ENTERING, 'given_back')} then struct(at as at) "
    f"when {_in('delayed', 'retried')} then struct(due as at) "
    f"when {_in(*CLAIMS)} then struct(cast(null as timestamp) as at) end"
)
_CLAIMED = (
    f"case when {_in(*CLAIMS)} then struct(at as at) "
    f"when {_in(*LEAVING, 'retried', 'given_back')} then struct(cast(null as timestamp) as at) end"
)
_PARTITION_ROWS = 500_000
_QUANTILES = "array(0.5D, 0.95D, 0.99D)"
# Of so many values the quantiles are exact; of more they are off by a ten-thousandth of the ranks at most. Exact ones
# of three million values took eight times as long, and one task would have to hold all of them.
_ACCURACY = 10_000
TIMES = frozenset({"minute", "second", "first_at", "last_at"})
# A journal of less than this is told by the second as well: by the minute it would be a few dots.
_SHORT_SECONDS = 600


@dataclass(frozen=True)
class Figures:
    """Everything that a report tells: single figures, and tables of rows."""

    queue: str
    summary: Row
    tables: dict[str, list[Row]]


def figures(entries: "DataFrame", manifest: Manifest, on_progress: OnProgress) -> Figures:
    """All figures, in one pass for the times of each message and a few aggregations over it."""
    timed = _timed(_by_message(entries, manifest)).persist()
    try:
        tables: dict[str, list[Row]] = {}
        steps: dict[str, Callable[[DataFrame], DataFrame]] = {
            "minutes": partial(_over_time, unit="minute"),
            "tenants": _tenants,
            "failures": _failures,
            "dead_letters": _dead_letters,
        }
        for place, (name, compute) in enumerate(steps.items(), 1):
            tables[name] = [_in_utc(one.asDict()) for one in compute(timed).collect()]
            on_progress(Progress("computed", place, len(steps) + 2, name))
        summary = _summary(timed)
        if _is_short(summary):
            tables["seconds"] = [_in_utc(one.asDict()) for one in _over_time(timed, "second").collect()]
        on_progress(Progress("computed", len(steps) + 1, len(steps) + 2, "totals"))
        conservation = _conservation(timed, manifest)
        on_progress(Progress("computed", len(steps) + 2, len(steps) + 2, "conservation"))
    finally:
        timed.unpersist()
    delivered = [one["delivered"] for one in tables["tenants"]]
    for one in tables["tenants"]:
        one["share"] = ratio(one["delivered"], sum(delivered))
    for name in tables.keys() & {"minutes", "seconds"}:
        _add_backlog(tables[name])
    tables["conservation"] = conservation.pop("accounts")
    tables["missing"] = [{"first_serial": first, "count": count} for first, count in manifest.missing]
    summary |= {"fairness": jain(delivered), "tenants": len(delivered), "conservation": conservation}
    return Figures(manifest.queue, summary, tables)


def _is_short(summary: Row) -> bool:
    first, last = summary["first_at"], summary["last_at"]
    return first is not None and (last - first).total_seconds() < _SHORT_SECONDS


def _by_message(entries: "DataFrame", manifest: Manifest) -> "DataFrame":
    """The entries of a message in one place, in no more places than they are worth.

    What is kept in memory stays cut as it is, and Spark's 200 partitions are 200 tasks for each table of the report.
    """
    rows = sum(one.rows for one in manifest.segments)
    cores = entries.sparkSession.sparkContext.defaultParallelism
    return entries.repartition(max(cores, -(-rows // _PARTITION_ROWS)), "id")


def _timed(entries: "DataFrame") -> "DataFrame":
    steps = entries.selectExpr(
        *("serial", "at", "event", "id", "tenant", "count", "error_type", "reason", "target"),
        f"last({_AVAILABLE}, true) {_BEFORE} as available",
        f"last({_CLAIMED}, true) {_BEFORE} as claimed",
        f"{_in(*CLAIMS)} and (count > 1 or coalesce(bool_or({_in(*CLAIMS)}) {_BEFORE}, false)) as again",
    )
    return steps.selectExpr(
        *("serial", "at", "event", "id", "tenant", "count", "error_type", "reason", "target", "again"),
        # `greatest` passes over nulls: what is unknown would become 0.
        f"case when event = 'claimed' and available.at is not null then {_since('available')} end as waited",
        f"case when {_OUTCOME} and claimed.at is not null then {_since('claimed')} end as worked",
    )


def _since(moment: str) -> str:
    return f"greatest(0, unix_micros(at) - unix_micros({moment}.at))"


def _quantiles(column: str, name: str) -> str:
    found = f"percentile_approx({column}, {_QUANTILES}, {_ACCURACY})"
    return f"transform({found}, one -> one / 1000000) as {name}"


def _counts() -> list[str]:
    return [f"count_if({_in(*events)}) as {name}" for name, events in _COUNTED.items()]


def _spread(name: str) -> list[str]:
    return [f"{name}[{place}] as {name}_p{quantile}" for place, quantile in enumerate((50, 95, 99))]


def _over_time(timed: "DataFrame", unit: str) -> "DataFrame":
    """One row for each minute, or second, in which something happened."""
    from pyspark.sql.functions import expr

    size = {"minute": 60_000_000, "second": 1_000_000}[unit]
    rows = (
        timed.where("at is not null")  # a gap has no time
        .groupBy(expr(f"unix_micros(at) div {size} * {size} as {unit}"))
        .agg(
            *map(expr, _counts()),
            expr(f"coalesce(sum(case when {_REMOVED} then count end), 0) as removed"),
            expr(_quantiles("waited", "waiting")),
            expr(_quantiles("worked", "processing")),
        )
    )
    columns = (unit, *_COUNTED, "removed", *_spread("waiting"), *_spread("processing"))
    return rows.selectExpr(*columns).orderBy(unit)


def _tenants(timed: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import desc, expr

    rows = timed.where("id is not null").groupBy("tenant")
    counted = rows.agg(*map(expr, _counts()), expr(_quantiles("waited", "waiting")))
    return counted.selectExpr("tenant", *_COUNTED, *_spread("waiting")).orderBy(desc("delivered"), "tenant")


def _failures(timed: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import desc, expr

    failed = timed.where(f"{_in('failed', 'retried', 'dead')} and error_type is not null").groupBy("error_type")
    columns = [f"count_if(event = '{one}') as {one}" for one in ("failed", "retried", "dead")]
    counted = failed.agg(*map(expr, columns), expr("count(*) as total"), expr("count(distinct id) as messages"))
    return counted.orderBy(desc("total"), "error_type")


def _dead_letters(timed: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import desc, expr

    letters = timed.where("event = 'dead'").groupBy("error_type", "reason")
    counted = letters.agg(
        expr("count(*) as letters"),
        expr("count(distinct coalesce(tenant, '')) as tenants"),
        expr("unix_micros(min(at)) as first_at"),
        expr("unix_micros(max(at)) as last_at"),
        expr("max_by(id, serial) as newest_id"),
    )
    return counted.orderBy(desc("letters"), "error_type", "reason")


def _summary(timed: "DataFrame") -> Row:
    columns = [
        *_counts(),
        "count(*) as entries",
        "count_if(event = 'redriven') as redriven",
        "count_if(event = 'reclaimed') as reclaimed",
        "count_if(again) as redelivered",
        "unix_micros(min(at)) as first_at",
        "unix_micros(max(at)) as last_at",
        _quantiles("waited", "waiting"),
        _quantiles("worked", "processing"),
        "count(waited) as waits",
        "count(worked) as outcomes",
    ]
    found: Any = timed.selectExpr(*columns).first()
    row = _in_utc(found.asDict())
    for name in ("waiting", "processing"):
        p50, p95, p99 = row.pop(name) or (None, None, None)
        row |= {f"{name}_p50": p50, f"{name}_p95": p95, f"{name}_p99": p99}
    asked = row["published"] - row["redriven"] + row["duplicates"]
    row["duplicate_ratio"] = ratio(row["duplicates"], asked)
    row["redelivery_ratio"] = ratio(row["redelivered"], row["delivered"])
    return row


def _conservation(entries: "DataFrame", manifest: Manifest) -> Row:
    """Every message by the last that is known of it, and whether that adds up to what the queue holds."""
    from pyspark.sql.functions import expr

    messages = entries.where("id is not null and event != 'duplicate'").groupBy("id")
    known = messages.agg(
        expr(f"count_if({_in(*ENTERING)}) as entered"),
        expr(f"count_if({_in(*LEAVING)}) as left"),
        expr("max_by(event, serial) as state"),
    )
    # After a message has left, nothing may follow.
    odd = f"(entered > 1 or left > 1 or (left = 1 and not state in {LEAVING}))"
    states = known.groupBy("state").agg(
        expr("count_if(entered > 0) as entered"), expr("count(*) as messages"), expr(f"count_if{odd} as odd")
    )
    found: dict[str, Any] = {one.state: one for one in states.collect()}
    purged: Any = entries.where(_REMOVED).selectExpr("coalesce(sum(count), 0)").first()
    return balance(
        entered=sum(one.entered for one in found.values()),
        left={name: found[name].messages if name in found else 0 for name in LEAVING},
        open_messages=sum(one.messages for name, one in found.items() if name not in LEAVING),
        unseen=sum(one.messages - one.entered for one in found.values()),
        odd=sum(one.odd for one in found.values()),
        purged=purged[0],
        manifest=manifest,
    )


def balance(
    *, entered: int, left: dict[str, int], open_messages: int, unseen: int, odd: int, purged: int, manifest: Manifest
) -> Row:
    """The accounts and the verdict: `balanced`, `unbalanced`, or `unknown` where something was not seen."""
    remaining = open_messages - purged
    depth = manifest.depth if manifest.depth and manifest.depth.serial == manifest.last_serial else None
    held = None if depth is None else depth.pending + depth.processing + depth.delayed
    missing = sum(count for _, count in manifest.missing)
    accounts = [
        {"account": "entered", "messages": entered},
        {"account": "entered_unseen", "messages": unseen},
        *({"account": name, "messages": count} for name, count in left.items()),
        {"account": "purged", "messages": purged},
        {"account": "remaining", "messages": remaining},
    ]
    verdict, because = _verdict(missing, unseen, odd, remaining, held)
    return {
        "verdict": verdict,
        "because": because,
        "missing_serials": missing,
        "odd": odd,
        "remaining": remaining,
        "held": held,
        "accounts": accounts,
    }


def _verdict(missing: int, unseen: int, odd: int, remaining: int, held: int | None) -> tuple[str, str]:
    if missing:
        return "unknown", (
            f"{missing:,} journal entries were trimmed before they were archived: what became of the messages that "
            "they told of is not known"
        )
    if odd:
        return "unbalanced", f"{odd:,} messages entered or left more than once, or went on after they had left"
    if unseen:
        return "unknown", f"{unseen:,} messages were in the queue before its journal began, and perhaps others"
    if held is None and remaining:
        return "unknown", f"{remaining:,} messages should be in the queue; how many it holds was not noted"
    held = held or 0
    if remaining > held:
        return "unbalanced", f"{remaining:,} messages should be in the queue, and it held {held:,}"
    if remaining < held:
        return "unknown", (
            f"the queue held {held - remaining:,} messages that the journal does not tell of: they were there before "
            "it began, or were not put there by this library"
        )
    return "balanced", "every message that entered has left, was purged, or is in the queue"


def _add_backlog(rows: list[Row]) -> None:
    """How many messages were in the queue at the end of each minute or second, as far as the journal knows."""
    backlog = 0
    for one in rows:
        gone = sum(one[name] for name in ("acked", "failed", "dead", "expired", "dropped")) + one["removed"]
        backlog += one["published"] - gone
        one["backlog"] = backlog


def _in_utc(row: Row) -> Row:
    """Times leave Spark as numbers: as times it would give them in the zone of whoever runs it, without saying so."""
    return {
        name: from_microseconds(value) if name in TIMES and value is not None else value for name, value in row.items()
    }


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def jain(served: list[int]) -> float | None:
    """Jain's index: 1 where everybody is served equally often, 1/n where one of n gets everything."""
    return sum(served) ** 2 / (len(served) * sum(one * one for one in served)) if any(served) else None
