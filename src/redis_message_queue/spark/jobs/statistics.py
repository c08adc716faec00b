"""Computes the statistics of a report with Spark from archived entries.

The definitions, which the page repeats:

- waiting time: from the moment a message could be claimed (it was published or requeued, or its delay or the pause
  before its retry ended) until it was claimed. A message from an expired lease has none: nobody knows when its consumer
  died.
- processing time: from a claim until the handler's outcome (acked, handed off, failed, retried, or dead with an error).
- quantiles: values that occurred, by nearest rank.
- redelivery: a claim that is not the first of its message. The delivery count of an entry is not enough: a failed
  attempt does not use up a delivery.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_message_queue.spark.jobs.inventory import Held
from redis_message_queue.spark.jobs.job import JobProgress, OnProgress
from redis_message_queue.spark.journal import from_microseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Row = dict[str, Any]
ENTERING = ("published", "redriven")
LEAVING = ("acked", "handed_off", "failed", "dead", "expired", "dropped", "discarded", "cancelled")
CLAIMS = ("claimed", "reclaimed")
WAITING_TARGETS = ("pending", "delayed", "orphans")  # purging these removes messages from the queue
_COUNTED = {
    "published": ENTERING,
    "duplicates": ("duplicate",),
    "delivered": CLAIMS,
    "acked": ("acked", "handed_off"),
    "failed": ("failed",),
    "retried": ("retried",),
    "dead": ("dead",),
    "expired": ("expired",),
    "dropped": ("dropped", "discarded", "cancelled"),
}


def _in(*events: str) -> str:
    return f"event in ({', '.join(repr(one) for one in events)})"


_REMOVED = f"{_in('purged', 'deleted')} and target in {WAITING_TARGETS}"
_OUTCOME = (
    f"({_in('acked', 'handed_off', 'failed', 'retried', 'discarded')} or (event = 'dead' and error_type is not null))"
)
_BEFORE = "over (partition by id order by serial rows between unbounded preceding and 1 preceding)"
# When a message could be claimed next. A claim resets it, so that a lost entry does not lengthen the next wait.
_AVAILABLE = (
    f"case when {_in(*ENTERING, 'requeued')} then struct(at as at) "
    f"when {_in('delayed', 'retried')} then struct(due as at) "
    f"when {_in(*CLAIMS)} then struct(cast(null as timestamp) as at) end"
)
_CLAIMED = (
    f"case when {_in(*CLAIMS)} then struct(at as at) "
    f"when {_in(*LEAVING, 'retried', 'requeued')} then struct(cast(null as timestamp) as at) end"
)
_PARTITION_ROWS = 500_000
_QUANTILES = "array(0.5D, 0.95D, 0.99D)"
# Quantiles of up to so many values are exact; of more they are off by a ten-thousandth of the ranks at most. Exact
# quantiles of three million values took eight times as long, and one task would have to hold all values.
_ACCURACY = 10_000
TIMES = frozenset({"minute", "second", "first_at", "last_at"})
# Of all columns of an entry, those that a report needs.
COLUMNS = ("serial", "at", "event", "id", "tenant", "due", "count", "error_type", "reason", "target", "journal")
_KEPT = ("journal", "serial", "at", "event", "id", "tenant", "count", "error_type", "reason", "target")
_EXAMPLES = 5  # ids that a verdict names
# A journal shorter than this gets a table by second too: by minute its plots would be a few dots.
_SHORT_SECONDS = 600


@dataclass(frozen=True)
class ArchivedQueue:
    """What an archive knows of a queue besides the entries of its journal."""

    queue: str
    rows: int
    held: Held | None
    contents: "DataFrame"  # the ids that were found in the queue
    last_serial: Callable[[str], int]  # the last serial of a journal that was archived


@dataclass(frozen=True)
class ReportStatistics:
    """Everything in a report: single figures, and tables of rows."""

    queue: str
    summary: Row
    tables: dict[str, list[Row]]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `report.json`."""
        return {"queue": self.queue, "summary": self.summary, "tables": self.tables}


def compute(entries: "DataFrame", archived: ArchivedQueue, on_progress: OnProgress) -> ReportStatistics:
    """Compute everything: one pass for the times of each message, and a few aggregations."""
    timed = _timed(_by_message(entries, archived.rows)).persist()
    try:
        tables: dict[str, list[Row]] = {}
        steps: dict[str, Callable[[DataFrame], DataFrame]] = {
            "minutes": partial(_over_time, unit="minute"),
            "tenants": _tenants,
            "failures": _failures,
            "dead_letters": _dead_letters,
        }
        for place, (name, aggregate) in enumerate(steps.items(), 1):
            tables[name] = [_in_utc(one.asDict()) for one in aggregate(timed).collect()]
            on_progress(JobProgress("computed", place, len(steps) + 2, name))
        summary = _summary(timed)
        if _is_short(summary):
            tables["seconds"] = [_in_utc(one.asDict()) for one in _over_time(timed, "second").collect()]
        on_progress(JobProgress("computed", len(steps) + 1, len(steps) + 2, "totals"))
        journals = _journals(timed, archived.last_serial)
        missing = [one for journal in journals for one in journal.missing]
        conservation = _conservation(timed, archived, journals)
        on_progress(JobProgress("computed", len(steps) + 2, len(steps) + 2, "conservation"))
    finally:
        timed.unpersist()
    delivered = [one["delivered"] for one in tables["tenants"]]
    for one in tables["tenants"]:
        one["share"] = ratio(one["delivered"], sum(delivered))
    for name in tables.keys() & {"minutes", "seconds"}:
        _add_backlog(tables[name])
    tables["conservation"] = conservation.pop("accounts")
    tables["missing"] = missing
    summary |= {"fairness": jain(delivered), "tenants": len(delivered), "conservation": conservation}
    return ReportStatistics(archived.queue, summary, tables)


def _is_short(summary: Row) -> bool:
    first, last = summary["first_at"], summary["last_at"]
    return first is not None and (last - first).total_seconds() < _SHORT_SECONDS


def _by_message(entries: "DataFrame", rows: int) -> "DataFrame":
    """Bring the entries of each message together, in as few partitions as will do.

    The persisted rows keep their partitions, and Spark's default of 200 means 200 tasks for each table of the report.
    """
    cores = entries.sparkSession.sparkContext.defaultParallelism
    return entries.repartition(max(cores, -(-rows // _PARTITION_ROWS)), "id")


def _timed(entries: "DataFrame") -> "DataFrame":
    steps = entries.selectExpr(
        *_KEPT,
        f"last({_AVAILABLE}, true) {_BEFORE} as available",
        f"last({_CLAIMED}, true) {_BEFORE} as claimed",
        f"{_in(*CLAIMS)} and (count > 1 or coalesce(bool_or({_in(*CLAIMS)}) {_BEFORE}, false)) as again",
    )
    return steps.selectExpr(
        *(*_KEPT, "again"),
        # `greatest` ignores nulls: an unknown time would become 0.
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
    """Return one row for each minute or second in which something happened."""
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


@dataclass(frozen=True)
class JournalRange:
    """One journal of a queue, as far as the archive has it. A new one begins when the server is flushed."""

    journal: str
    began: int  # microseconds, to tell which journal is the newest
    last_serial: int
    repeated: int  # entries that the archive has more than once
    missing: list[Row]  # serials that the archive does not have


def _journals(entries: "DataFrame", last_serial: Callable[[str], int]) -> list[JournalRange]:
    """Return the journals of the queue, the oldest first."""
    from pyspark.sql.functions import expr

    ranges = entries.groupBy("journal").agg(
        *map(expr, ("min(serial) as first", "max(serial) as last", "count(*) as rows")),
        expr("count(distinct serial) as serials"),
        expr("coalesce(unix_micros(min(at)), 0) as began"),
    )
    found = []
    for one in ranges.orderBy("began").collect():
        newest = max(one["last"], last_serial(one.journal or ""))
        whole = one["first"] == 1 and one["last"] == newest == one.serials
        missing = [] if whole else _missing(entries.where(_of_journal(one.journal)), newest)
        rows = [{"journal": one.journal, "first_serial": first, "count": count} for first, count in missing]
        found.append(JournalRange(one.journal, one.began, newest, one["rows"] - one.serials, rows))
    return found


def _of_journal(journal: str | None) -> "Column":
    from pyspark.sql.functions import col

    return col("journal").isNull() if journal is None else col("journal").eqNullSafe(journal)


def _missing(entries: "DataFrame", last: int) -> list[tuple[int, int]]:
    """Return the serials from 1 to ``last`` that are not there: the first of each gap, and how many."""
    steps = entries.selectExpr("serial", "lag(serial, 1, 0) over (order by serial) as before")
    gaps = steps.where("serial > before + 1").orderBy("serial").collect()
    end: Any = entries.selectExpr("max(serial)").first()
    tail = [(end[0] + 1, last - end[0])] if end[0] < last else []
    return [*((one.before + 1, one.serial - one.before - 1) for one in gaps), *tail]


def _conservation(entries: "DataFrame", archived: ArchivedQueue, journals: list[JournalRange]) -> Row:
    """Count every message by its last event, and compare with what the queue has."""
    from pyspark.sql.functions import expr

    messages = entries.where("id is not null and event != 'duplicate'").groupBy("id")
    known = messages.agg(
        expr(f"count_if({_in(*ENTERING)}) as entered"),
        expr(f"count_if({_in(*LEAVING)}) as left"),
        expr("max_by(event, serial) as state"),
        expr("max_by(journal, serial) as journal"),
    ).persist()
    newest = journals[-1].journal if journals else ""
    try:
        # After a message has left, no event may follow.
        odd = f"(entered > 1 or left > 1 or (left = 1 and not state in {LEAVING}))"
        states = known.groupBy("state", _of_journal(newest).alias("is_newest")).agg(
            expr("count_if(entered > 0) as entered"), expr("count(*) as messages"), expr(f"count_if{odd} as odd")
        )
        rows = states.collect()
        is_open = [one for one in rows if one.state not in LEAVING]
        purged = _count(entries.where(_REMOVED), "coalesce(sum(count), 0)")
        foreign = archived.contents.join(known.select("id"), "id", "left_anti")
        remaining = known.where(expr(f"state not in {LEAVING}")).where(_of_journal(newest))
        absent = remaining.select("id").join(archived.contents, "id", "left_anti").orderBy("id")
        return balance(
            entered=sum(one.entered for one in rows),
            left={name: sum(one.messages for one in rows if one.state == name) for name in LEAVING},
            open_messages=sum(one.messages for one in is_open if one.is_newest),
            flushed=sum(one.messages for one in is_open if not one.is_newest),
            unseen=sum(one.messages - one.entered for one in rows),
            odd=sum(one.odd for one in rows),
            purged=purged,
            foreign=_count(foreign, "count(distinct id) + count_if(id is null)"),
            repeated=sum(one.repeated for one in journals),
            missing=sum(one["count"] for journal in journals for one in journal.missing),
            held=_held(archived.held, journals),
            absent_ids=lambda: [one.id for one in absent.limit(_EXAMPLES).collect()],
        )
    finally:
        known.unpersist()


def _count(rows: "DataFrame", expression: str) -> int:
    found: Any = rows.selectExpr(expression).first()
    return int(found[0])


def _held(held: Held | None, journals: list[JournalRange]) -> int | None:
    """Return how many messages the queue held at the last archived entry, if that is known."""
    last = journals[-1] if journals else None
    same = held is not None and last is not None and (held.journal, held.serial) == (last.journal, last.last_serial)
    return held.messages if same and held is not None else None


def balance(
    *,
    entered: int,
    left: dict[str, int],
    open_messages: int,
    unseen: int,
    odd: int,
    purged: int,
    held: int | None,
    missing: int = 0,
    flushed: int = 0,
    foreign: int = 0,
    repeated: int = 0,
    absent_ids: Callable[[], list[str]] = list,
) -> Row:
    """Return the accounts and the verdict: `balanced`, `unbalanced`, or `unknown` if entries are missing."""
    remaining = open_messages - purged
    accounts = [
        {"account": "entered", "messages": entered},
        {"account": "entered_unseen", "messages": unseen},
        *({"account": name, "messages": count} for name, count in left.items()),
        {"account": "purged", "messages": purged},
        {"account": "flushed", "messages": flushed},
        {"account": "remaining", "messages": remaining},
        {"account": "foreign", "messages": foreign},
    ]
    verdict, because = (
        _verdict_on_entries(missing, odd, repeated)
        or _verdict_on_messages(unseen, flushed, remaining, held, foreign, absent_ids)
        or ("balanced", "every message that entered has left, was purged, or is in the queue")
    )
    return {
        "verdict": verdict,
        "because": because,
        "missing_serials": missing,
        "odd": odd,
        "remaining": remaining,
        "held": held,
        "foreign": foreign,
        "accounts": accounts,
    }


def _verdict_on_entries(missing: int, odd: int, repeated: int) -> tuple[str, str] | None:
    if repeated:
        return "unbalanced", f"{repeated:,} journal entries are in the archive more than once"
    if missing:
        return "unknown", (
            f"{missing:,} journal entries are not in the archive: they were trimmed before they were archived, or "
            "deleted from it. So the fate of their messages is not known"
        )
    if odd:
        return "unbalanced", f"{odd:,} messages entered or left more than once, or had events after they had left"
    return None


def _verdict_on_messages(
    unseen: int, flushed: int, remaining: int, held: int | None, foreign: int, absent_ids: Callable[[], list[str]]
) -> tuple[str, str] | None:
    if flushed:
        return "unbalanced", (
            f"{flushed:,} messages were in the queue when its data was deleted from Redis, by FLUSHALL or a failover"
        )
    if unseen:
        return "unknown", f"{unseen:,} messages, and perhaps others, were in the queue before its journal began"
    if held is None:
        if not remaining:
            return None
        return "unknown", f"{remaining:,} messages should be in the queue, but what it held was not recorded"
    ours = held - foreign
    if remaining > ours:
        ids, lost = absent_ids(), remaining - ours
        # A purge leaves no ids behind, so what it removed cannot be told from what is missing.
        named = f"{' (among these)' if len(ids) > lost else ''}: {', '.join(ids)}" if ids else ""
        more = ", ..." if len(ids) in range(_EXAMPLES, lost) else ""
        return "unbalanced", f"{lost:,} messages that should be in the queue are not there{named}{more}"
    if foreign or remaining < ours:
        return "unknown", (
            f"the queue had {held - remaining:,} messages that are not in the journal: they were there before it "
            "began, or another program put them there"
        )
    return None


def _add_backlog(rows: list[Row]) -> None:
    """Add how many messages were in the queue at the end of each minute or second, by the journal."""
    backlog = 0
    for one in rows:
        gone = sum(one[name] for name in ("acked", "failed", "dead", "expired", "dropped")) + one["removed"]
        backlog += one["published"] - gone
        one["backlog"] = backlog


def _in_utc(row: Row) -> Row:
    """Make times from numbers. Spark would return times in the local zone, without saying so."""
    return {
        name: from_microseconds(value) if name in TIMES and value is not None else value for name, value in row.items()
    }


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def jain(served: list[int]) -> float | None:
    """Return Jain's index: 1 if all are served equally often, 1/n if one of n gets everything."""
    return sum(served) ** 2 / (len(served) * sum(one * one for one in served)) if any(served) else None
