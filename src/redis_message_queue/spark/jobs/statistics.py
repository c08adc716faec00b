"""Computes the statistics of a report with Spark from archived entries.

The definitions, which the page repeats:

- waiting time: from the moment a message could be claimed (it was published or requeued, or its delay or the pause
  before its retry ended) until it was claimed. A message from an expired lease has none: nobody knows when its consumer
  died.
- processing time: from a claim until the handler's outcome (acked, handed off, failed, retried, or dead with an error).
- handler time: how long the handler ran, as its consumer noted it. Where it noted nothing, because it started the
  handler right after the claim, that is the processing time.
- prefetch time: from a claim until the handler started, where the consumer noted it.
- quantiles: values that occurred, by nearest rank.
- redelivery: a claim that is not the first of its message. The delivery count of an entry is not enough: a failed
  attempt does not use up a delivery.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from redis_message_queue.spark.job_options import Window
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
_ERRORS = f"({_OUTCOME} and not {_in('acked', 'handed_off', 'discarded')})"
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
# What state a message is in after an event. A message that waits for its time is `delayed` until it is due.
_STATE = (
    f"case when {_in(*ENTERING, 'requeued')} then 'waiting' when {_in('delayed', 'retried')} then 'delayed' "
    f"when {_in(*CLAIMS)} then 'in_flight' end"
)
STATES = ("waiting", "in_flight", "delayed")
_REMOVED_FROM = {"pending": "waiting", "orphans": "in_flight", "delayed": "delayed"}
_PARTITION_ROWS = 500_000
_QUANTILES = "array(0.5D, 0.95D, 0.99D)"
# Quantiles of up to so many values are exact; of more they are off by a ten-thousandth of the ranks at most. Exact
# quantiles of three million values took eight times as long, and one task would have to hold all values.
_ACCURACY = 10_000
TIMES = frozenset({"minute", "second", "first_at", "last_at", "after_at", "before_at", "from_at", "to_at"})
SPREADS = ("waiting", "processing", "handler", "prefetch")
_TIMES_OF = {"waiting": "waited", "processing": "worked", "handler": "handled", "prefetch": "buffered"}
_MICROSECONDS = {"minute": 60_000_000, "second": 1_000_000}
# Of all columns of an entry, those that a report needs.
COLUMNS = (
    *("serial", "at", "event", "id", "tenant", "due", "count", "error_type", "reason", "target", "journal"),
    *("started", "handled"),
)
_KEPT = ("journal", "serial", "at", "event", "id", "tenant", "due", "count", "error_type", "reason", "target")
_MOST_TENANTS = 6  # that have lines of their own
_EXAMPLES = 5  # ids that a verdict names
# A journal shorter than this gets a table by second too: by minute its plots would be a few dots.
_SHORT_SECONDS = 600


@dataclass(frozen=True)
class ArchivedQueue:
    """What an archive knows of a queue besides the entries of its journal."""

    queue: str
    rows: int
    held: list[Held]  # by each partition
    contents: "DataFrame"  # the ids that were found in the queue
    last_serial: Callable[[str], int]  # the last serial of a journal that was archived
    records: "DataFrame | None" = None  # of settled messages, with the texts of their errors


@dataclass(frozen=True)
class ReportStatistics:
    """Everything in a report: single figures, and tables of rows."""

    queue: str
    summary: Row
    tables: dict[str, list[Row]]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `report.json`."""
        return {"queue": self.queue, "summary": self.summary, "tables": self.tables}


def compute(
    entries: "DataFrame", archived: ArchivedQueue, on_progress: OnProgress, window: Window | None = None
) -> ReportStatistics:
    """Compute everything: one pass for the times of each message, and a few aggregations.

    The tables are about the window. The verdict is about all that is archived.
    """
    return _Computation(entries, archived, on_progress, window or Window()).run()


@dataclass
class _Computation:
    """One report in the making."""

    entries: "DataFrame"
    archived: ArchivedQueue
    on_progress: OnProgress
    window: Window
    _done: int = field(default=0, init=False)

    def run(self) -> ReportStatistics:
        timed = _timed(_by_message(self.entries, self.archived.rows), self.window).persist()
        try:
            inside = timed.where("inside")
            summary = self._step("totals", lambda: _summary(inside))
            units = ("minute", "second") if _is_short(summary) else ("minute",)
            tables: dict[str, list[Row]] = {}
            for unit in units:
                tables[f"{unit}s"] = self._step(f"{unit}s", partial(self._over_time, timed, unit))
            steps: dict[str, Callable[[], DataFrame]] = {
                "tenants": lambda: _tenants(timed, self.window),
                "failures": lambda: _failures(inside),
                "dead_letters": lambda: _dead_letters(inside),
            }
            for name, aggregate in steps.items():
                tables[name] = self._step(name, lambda aggregate=aggregate: _collect(aggregate()))  # type: ignore[misc]
            busiest = [one["tenant"] for one in tables["tenants"][:_MOST_TENANTS]]
            several = len(tables["tenants"]) > 1
            tables["tenants_over_time"] = self._step(
                "tenants over time", lambda: _collect(_tenants_over_time(inside, busiest, units[-1])) if several else []
            )
            texts = self._step("error texts", lambda: _error_texts(self.archived.records, tables["failures"]))
            journals = _journals(timed, self.archived.last_serial)
            conservation = self._step("conservation", lambda: _conservation(timed, self.archived, journals))
        finally:
            timed.unpersist()
        _add_error_texts(tables, texts)
        _add_shares(tables["tenants"])
        tables["conservation"] = conservation.pop("accounts")
        tables["missing"] = [one for journal in journals for one in journal.missing]
        summary |= {
            "since": self.window.since,
            "until": self.window.until,
            "fairness": jain([one["served"] / one["demand"] for one in tables["tenants"] if one["demand"] > 0]),
            "tenants": len(tables["tenants"]),
            "conservation": conservation,
        }
        return ReportStatistics(self.archived.queue, summary, tables)

    def _step(self, name: str, work: Callable[[], Any]) -> Any:
        found = work()
        self._done += 1
        self.on_progress(JobProgress("computed", self._done, None, name))
        return found

    def _over_time(self, timed: "DataFrame", unit: str) -> list[Row]:
        rows = _collect(_over_time(timed.where("inside"), unit))
        _add_levels(rows, _level_changes(timed, unit), unit)
        return rows


def _collect(rows: "DataFrame") -> list[Row]:
    return [_in_utc(one.asDict()) for one in rows.collect()]


def _is_short(summary: Row) -> bool:
    first, last = summary["first_at"], summary["last_at"]
    return first is not None and (last - first).total_seconds() < _SHORT_SECONDS


def _by_message(entries: "DataFrame", rows: int) -> "DataFrame":
    """Bring the entries of each message together, in as few partitions as will do.

    The persisted rows keep their partitions, and Spark's default of 200 means 200 tasks for each table of the report.
    """
    cores = entries.sparkSession.sparkContext.defaultParallelism
    return entries.repartition(max(cores, -(-rows // _PARTITION_ROWS)), "id")


def _timed(entries: "DataFrame", window: Window) -> "DataFrame":
    steps = entries.selectExpr(
        *(*_KEPT, "started", "handled"),
        f"{window.inside} as inside",
        f"last({_AVAILABLE}, true) {_BEFORE} as available",
        f"last({_CLAIMED}, true) {_BEFORE} as claimed",
        f"{_in(*CLAIMS)} and (count > 1 or coalesce(bool_or({_in(*CLAIMS)}) {_BEFORE}, false)) as again",
        "lead(at) over (partition by id order by serial) as next_at",
    )
    return steps.selectExpr(
        *(*_KEPT, "inside", "again"),
        "case when next_at < at then at else next_at end as next_at",
        # `greatest` ignores nulls: an unknown time would become 0.
        f"case when event = 'claimed' and available.at is not null then {_since('available')} end as waited",
        f"case when {_OUTCOME} and claimed.at is not null then {_since('claimed')} end as worked",
        f"case when {_OUTCOME} and claimed.at is not null then coalesce(handled, {_since('claimed')}) end as handled",
        f"case when {_OUTCOME} and claimed.at is not null and started is not null "
        "then greatest(0, unix_micros(started) - unix_micros(claimed.at)) end as buffered",
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


def _all_quantiles(*names: str) -> list[str]:
    return [_quantiles(_TIMES_OF[name], name) for name in names]


def _all_spreads(*names: str) -> list[str]:
    return [column for name in names for column in _spread(name)]


def _bucket(time: str, unit: str) -> str:
    return f"unix_micros({time}) div {_MICROSECONDS[unit]} * {_MICROSECONDS[unit]} as {unit}"


def _over_time(timed: "DataFrame", unit: str) -> "DataFrame":
    """Return one row for each minute or second in which something happened."""
    from pyspark.sql.functions import expr

    rows = (
        timed.where("at is not null")  # a gap has no time
        .groupBy(expr(_bucket("at", unit)))
        .agg(
            *map(expr, _counts()),
            expr(f"count_if({_OUTCOME}) as outcomes"),
            expr(f"count_if({_ERRORS}) as errors"),
            expr(f"coalesce(sum(case when {_REMOVED} then count end), 0) as removed"),
            *map(expr, _all_quantiles(*SPREADS)),
        )
    )
    return rows.selectExpr(unit, *_COUNTED, "outcomes", "errors", "removed", *_all_spreads(*SPREADS)).orderBy(unit)


def _level_changes(timed: "DataFrame", unit: str) -> dict[int, dict[str, int]]:
    """Return by how much the number of messages in each state changes in each minute or second.

    A message is in a state from its event until its next one. A delayed message waits from when it is due. What an
    operator removes is subtracted: the journal does not say which messages these were.
    """
    from pyspark.sql.functions import expr

    due = "least(coalesce(next_at, due), greatest(due, at))"
    spans = timed.where(f"id is not null and {_STATE} is not null").selectExpr(
        f"""explode(case when {_STATE} = 'delayed' and due is not null then array(
              struct('delayed' as state, at as start, {due} as stop),
              struct('waiting' as state, {due} as start, next_at as stop))
            else array(struct({_STATE} as state, at as start, next_at as stop)) end) as span"""
    )
    changes = spans.selectExpr(
        "span.state as state",
        "explode(array(struct(span.start as at, 1L as change), struct(span.stop as at, -1L as change))) as one",
    )
    removed_from = " ".join(f"when '{target}' then '{state}'" for target, state in _REMOVED_FROM.items())
    removed = timed.where(_REMOVED).selectExpr(
        f"case target {removed_from} end as state", "struct(at as at, -count as change) as one"
    )
    changes = changes.unionAll(removed).where("one.at is not null")
    sums = [f"sum(case when state = '{state}' then one.change else 0 end) as {state}" for state in STATES]
    rows = changes.groupBy(expr(_bucket("one.at", unit))).agg(*map(expr, sums)).collect()
    return {one[unit]: {state: one[state] for state in STATES} for one in rows}


def _add_levels(rows: list[Row], changes: dict[int, dict[str, int]], unit: str) -> None:
    """Add how many messages were in each state at the end of each minute or second, by the journal."""
    levels, upcoming = dict.fromkeys(STATES, 0), sorted(changes, reverse=True)
    for one in rows:
        start = round(one[unit].timestamp() * 1_000_000)
        while upcoming and upcoming[-1] <= start:
            for state, change in changes[upcoming.pop()].items():
                levels[state] += change
        one |= levels | {"backlog": sum(levels.values())}


def _tenants(timed: "DataFrame", window: Window) -> "DataFrame":
    """Return what each tenant published and got. Its demand is what waited before the window, and what it published."""
    from pyspark.sql.functions import desc, expr

    first = f"{_in(*CLAIMS)} and not again"
    known = timed.where(f"(id is not null or ({_REMOVED})) and (inside or {window.before})").groupBy("tenant")
    counted = known.agg(
        *(expr(f"count_if(inside and {_in(*events)}) as {name}") for name, events in _COUNTED.items()),
        expr(f"count_if(inside and {first}) as served"),
        expr(
            f"count_if({_in(*ENTERING)}) - count_if(not inside and {first}) "
            f"- coalesce(sum(case when {_REMOVED} then count end), 0) as demand"
        ),
        expr(_quantiles("case when inside then waited end", "waiting")),
        expr(_quantiles("case when inside then handled end", "handler")),
    )
    columns = ("tenant", *_COUNTED, "served", "demand", *_all_spreads("waiting", "handler"))
    has_part = " + ".join((*_COUNTED, "greatest(demand, 0)"))
    return counted.where(f"{has_part} > 0").selectExpr(*columns).orderBy(desc("delivered"), "tenant")


def _tenants_over_time(timed: "DataFrame", tenants: list[str | None], unit: str) -> "DataFrame":
    """Return a row for each minute or second, and each of these tenants."""
    from pyspark.sql.functions import coalesce, col, expr, lit

    some = timed.where("at is not null and id is not null").where(
        coalesce(col("tenant"), lit("")).isin([one or "" for one in tenants])
    )
    names = ("published", "delivered", "acked", "failed", "dead")
    counts = [expr(f"count_if({_in(*_COUNTED[name])}) as {name}") for name in names]
    return some.groupBy(expr(_bucket("at", unit)), "tenant").agg(*counts).orderBy(unit, "tenant")


def _add_shares(tenants: list[Row]) -> None:
    delivered = sum(one["delivered"] for one in tenants)
    for one in tenants:
        one["share"] = ratio(one["delivered"], delivered)


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


def _error_texts(records: "DataFrame | None", failures: list[Row]) -> dict[tuple[Any, Any], tuple[Any, str]]:
    """Return the newest text of each error by type and reason, with its time."""
    from pyspark.sql.functions import expr

    if records is None or not failures:
        return {}
    known = records.where("error is not null and error != ''").groupBy("error_type", "reason")
    rows = known.agg(
        expr("coalesce(unix_micros(max(finished_at)), 0) as at"), expr("max_by(error, finished_at) as error")
    )
    return {(one.error_type, one.reason): (one.at, one.error) for one in rows.collect()}


def _add_error_texts(tables: dict[str, list[Row]], texts: dict[tuple[Any, Any], tuple[Any, str]]) -> None:
    newest: dict[Any, tuple[Any, str]] = {}
    for (error_type, _), found in texts.items():
        newest[error_type] = max(newest.get(error_type, found), found)
    for one in tables["dead_letters"]:
        one["error"] = texts.get((one["error_type"], one["reason"]), (0, None))[1]
    for one in tables["failures"]:
        one["error"] = newest.get(one["error_type"], (0, None))[1]


def _summary(timed: "DataFrame") -> Row:
    columns = [
        *_counts(),
        "count(*) as entries",
        "count_if(event = 'redriven') as redriven",
        "count_if(event = 'reclaimed') as reclaimed",
        "count_if(again) as redelivered",
        "unix_micros(min(at)) as first_at",
        "unix_micros(max(at)) as last_at",
        *_all_quantiles(*SPREADS),
        "count(waited) as waits",
        f"count_if({_OUTCOME}) as outcomes",
        f"count_if({_ERRORS}) as errors",
    ]
    found: Any = timed.selectExpr(*columns).first()
    row = _in_utc(found.asDict())
    for name in SPREADS:
        p50, p95, p99 = row.pop(name) or (None, None, None)
        row |= {f"{name}_p50": p50, f"{name}_p95": p95, f"{name}_p99": p99}
    asked = row["published"] - row["redriven"] + row["duplicates"]
    row["duplicate_ratio"] = ratio(row["duplicates"], asked)
    row["redelivery_ratio"] = ratio(row["redelivered"], row["delivered"])
    row["error_ratio"] = ratio(row["errors"], row["outcomes"])
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
        rows = [{"journal": one.journal, **gap} for gap in missing]
        found.append(JournalRange(one.journal, one.began, newest, one["rows"] - one.serials, rows))
    return found


def _of_journal(journal: str | None) -> "Column":
    from pyspark.sql.functions import col

    return col("journal").isNull() if journal is None else col("journal").eqNullSafe(journal)


def _of_journals(journals: "list[JournalRange]") -> "Column":
    from pyspark.sql.functions import lit

    return reduce(operator.or_, [_of_journal(one.journal) for one in journals], lit(False))


def newest_of(journals: list[JournalRange]) -> list[JournalRange]:
    """Return the journal that each partition has now. Their names end in the number of the partition."""
    return list({(one.journal or "").partition("/")[2]: one for one in journals}.values())


def _missing(entries: "DataFrame", last: int) -> list[Row]:
    """Return the serials from 1 to ``last`` that are not there, and the times of the entries around them."""
    steps = entries.selectExpr(
        "serial",
        "lag(serial, 1, 0) over (order by serial) as before",
        "unix_micros(last(at, true) over (order by serial rows between unbounded preceding and 1 preceding)) "
        "as after_at",
        "unix_micros(first(at, true) over (order by serial rows between current row and unbounded following)) "
        "as before_at",
    )
    gaps = steps.where("serial > before + 1").orderBy("serial").collect()
    end: Any = entries.selectExpr("max(serial) as serial", "unix_micros(max(at)) as at").first()
    found = [
        {
            "first_serial": one.before + 1,
            "count": one.serial - one.before - 1,
            "after_at": one.after_at,
            "before_at": one.before_at,
        }
        for one in gaps
    ]
    if end.serial < last:
        found.append(
            {"first_serial": end.serial + 1, "count": last - end.serial, "after_at": end.at, "before_at": None}
        )
    return [_in_utc(one) for one in found]


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
    newest = _of_journals(newest_of(journals))
    try:
        # After a message has left, no event may follow.
        odd = f"(entered > 1 or left > 1 or (left = 1 and not state in {LEAVING}))"
        states = known.groupBy("state", newest.alias("is_newest")).agg(
            expr("count_if(entered > 0) as entered"), expr("count(*) as messages"), expr(f"count_if{odd} as odd")
        )
        rows = states.collect()
        is_open = [one for one in rows if one.state not in LEAVING]
        purged = _count(entries.where(_REMOVED), "coalesce(sum(count), 0)")
        foreign = archived.contents.join(known.select("id"), "id", "left_anti")
        remaining = known.where(expr(f"state not in {LEAVING}")).where(newest)
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


def _held(held: list[Held], journals: list[JournalRange]) -> int | None:
    """Return how many messages the queue held at the last archived entries, if that is known."""
    known = {(one.journal, one.serial): one.messages for one in held}
    found = [known.get((one.journal, one.last_serial)) for one in newest_of(journals)]
    return sum(one or 0 for one in found) if found and None not in found else None


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
