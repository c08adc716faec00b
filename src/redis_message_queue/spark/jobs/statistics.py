"""Selects the figures of a report from the tables of counts, in Spark SQL: nothing is computed from messages again."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import col, expr

from redis_message_queue.spark.job_options import Window
from redis_message_queue.spark.jobs.lake import BACKLOG_CHANGE, ENTERING, LEAVING, SPREADS, STATES, Lake
from redis_message_queue.spark.jobs.plots import bucket_size, floor_time
from redis_message_queue.spark.jobs.records import newest_error_texts
from redis_message_queue.spark.jobs.refresh import seconds_of
from redis_message_queue.spark.jobs.verdict import Accounts, Row, Verdict, accounts_of, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PERCENTS = (50, 95, 99)
_MOST_TENANTS = 6  # that have lines of their own
UNITS = {"second": timedelta(seconds=1), "minute": timedelta(minutes=1), "hour": timedelta(hours=1)}
_SHORT, _LONG = timedelta(minutes=10), timedelta(days=2)  # counted by seconds below, by hours above
_GROUPED = {
    "published": ENTERING,
    "duplicates": ("duplicate",),
    "delivered": ("claimed", "reclaimed"),
    "acked": ("acked", "handed_off"),
    "dropped": ("dropped", "discarded", "cancelled"),
}
_PLAIN = ("failed", "retried", "dead", "expired")
COUNTED = (*_GROUPED, *_PLAIN)
_CHANGES = tuple(f"{state}_change" for state in STATES)
_REMOVED = " + ".join(f"removed_{state}" for state in STATES)
_COUNTS = [
    *(f"sum({' + '.join(events)}) as {name}" for name, events in _GROUPED.items()),
    *(f"sum({name}) as {name}" for name in _PLAIN),
]
_OUTCOMES = ["sum(outcomes) as outcomes", "sum(errors) as errors", f"sum({_REMOVED}) as removed"]
_WAITED = ("withdrawn", "unserved", "unserved_delayed_change", "removed", "removed_delayed")
_TIMES = ["min(first_at) as first_at", "max(last_at) as last_at"]


def _quantiles(names: Sequence[str] = SPREADS) -> list[str]:
    shares = f"array({', '.join(f'{percent / 100}D' for percent in PERCENTS)})"
    # A sketch without values has no quantiles, and merging none gives one without values.
    merged = {name: f"kll_merge_agg_bigint({name}_sketch)" for name in names}
    return [
        f"if(kll_sketch_get_n_bigint({one}) > 0, kll_sketch_get_quantile_bigint({one}, {shares}), null) as {name}_q"
        for name, one in merged.items()
    ]


def _quantile_names(names: Sequence[str]) -> list[str]:
    return [f"{name}_p{percent}" for name in names for percent in PERCENTS]


@dataclass(frozen=True)
class ReportStatistics:
    """Everything in a report: single figures, and tables of rows."""

    queue: str
    summary: Row
    tables: dict[str, list[Row]]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `report.json`."""
        return {"queue": self.queue, "summary": self.summary, "tables": self.tables}


class Statistics:
    """Selects the figures of one queue in a window, from tables that are up to its journal."""

    def __init__(self, spark: "SparkSession", lake: Lake, window: Window) -> None:
        self._spark, self._lake, self._given = spark, lake, window
        self._accounts: Accounts = accounts_of(spark, lake)

    def compute(self) -> ReportStatistics:
        verdict = judge(self._accounts)
        summary = self._summary()
        tables: dict[str, list[Row]] = {
            "over_time": self._over_time,
            "tenants": self._tenants(),
            "consumers": self._consumers(),
            "failures": self._failures(),
            "dead_letters": self._dead_letters(),
            "conservation": self._conservation(),
            "missing": [
                {name: one[name] for name in ("journal", "first_serial", "after_at", "before_at")}
                | {"count": one["messages"]}
                for one in self._accounts.found("missing")
            ],
        }
        tables["tenants_over_time"] = self._tenants_over_time(tables["tenants"])
        self._add_error_texts(tables)
        served = [one["served"] / one["demand"] for one in tables["tenants"] if one["demand"] > 0]
        summary |= {
            "since": self._window.since,
            "until": self._window.until,
            "unit": self._unit,
            "fairness": jain(served),
            "tenants": len(tables["tenants"]),
            "previous": self._previous(),
            "conservation": self._outcome(verdict),
        }
        return ReportStatistics(self._lake.queue, summary, tables)

    # -- what is read

    @cached_property
    def _span(self) -> tuple[datetime, datetime] | None:
        """The first and the last hour that is counted."""
        found = [
            one.statistics["start"] for one in self._lake.hours.files(self._lake.queue) if "start" in one.statistics
        ]
        if not found:
            return None
        first, last = min(one[0] for one in found), max(one[1] for one in found)
        return datetime.fromisoformat(first), datetime.fromisoformat(last)

    @cached_property
    def _unit(self) -> str:
        """Whether seconds, minutes or hours are counted."""
        if self._span is None:
            return "minute"
        first, last = self._span
        first, last = max(first, self._given.since or first), min(last, self._given.until or last)
        if last - first > _LONG:
            return "hour"
        if self._span[1] - self._span[0] <= UNITS["hour"]:
            times = self._lake.minutes.read(self._spark, self._lake.queue, ("first_at", "last_at"))
            begun, ended = times.selectExpr("min(first_at)", "max(last_at)").collect()[0]
            if begun is not None and ended - begun < _SHORT:
                return "second"
        return "minute"

    @cached_property
    def _window(self) -> Window:
        """The window, in whole units."""
        size = UNITS[self._unit]
        since, until = self._given.since, self._given.until
        if since is not None:
            since = floor_time(since.astimezone(UTC), size)
        if until is not None:
            floored = floor_time(until.astimezone(UTC), size)
            until = floored if floored == until else floored + size
        return Window(since, until)

    @cached_property
    def _counts(self) -> "DataFrame":
        """The counts from the window on: what was before it is not read."""
        if self._unit == "second":
            found = seconds_of(self._spark, self._lake)
        else:
            table = self._lake.hours if self._unit == "hour" else self._lake.minutes
            first = "" if self._window.since is None else self._window.since.date().isoformat()
            found = table.read(self._spark, self._lake.queue, None, lambda one: one.date >= first)
        if self._window.since is not None:
            found = found.where(f"start >= {_timestamp(self._window.since)}")
        return found.persist()

    def _inside(self, scope: str) -> "DataFrame":
        until = self._window.until
        rows = self._counts.where(f"scope = '{scope}'")
        return rows if until is None else rows.where(f"start < {_timestamp(until)}")

    def _after(self, scope: str, columns: Sequence[str], *keys: str) -> list[Any]:
        """Return sums of what was counted after the window."""
        if (until := self._window.until) is None:
            return []
        rows = self._counts.where(f"scope = '{scope}' and start >= {_timestamp(until)}")
        return rows.groupBy(*keys).agg(*map(expr, columns)).collect()

    def close(self) -> None:
        self._counts.unpersist()

    # -- figures

    @cached_property
    def _total(self) -> Row:
        others = ("entries", "redriven", "reclaimed", "redelivered", "handed_off", "discarded", "cancelled")
        columns = [*_COUNTS, *_OUTCOMES, *_TIMES, *(f"sum({name}) as {name}" for name in others), *_quantiles()]
        return _row(self._inside("queue").agg(*map(expr, columns)).collect()[0])

    @cached_property
    def _last_at(self) -> datetime | None:
        """The last entry of the archive, as far as it is read: what becomes due after it is not known to wait."""
        last: datetime | None = self._total["last_at"]
        if self._window.until is None and last is not None:
            return last
        (found,) = self._counts.where("scope = 'queue'").selectExpr("max(last_at)").collect()[0]
        return None if found is None else _utc(found)

    def _summary(self) -> Row:
        optional = ("first_at", "last_at", *_quantile_names(SPREADS))
        row = {name: value if name in optional else value or 0 for name, value in self._total.items()}
        asked = row["published"] - row["redriven"] + row["duplicates"]
        row["duplicate_ratio"] = _ratio(row["duplicates"], asked)
        row["redelivery_ratio"] = _ratio(row["redelivered"], row["delivered"])
        row["error_ratio"] = _ratio(row["errors"], row["outcomes"])
        levels = self._levels_at_the_end
        due = sum(count for _, count in self._due)
        levels = {**levels, "waiting": levels["waiting"] + due, "delayed": levels["delayed"] - due}
        peaks = [one["peak"] for one in self._over_time]
        return row | levels | {"backlog": sum(levels.values()), "peak": max(peaks, default=0)}

    def _previous(self) -> Row | None:
        """Return the figures of the period of the same length before this one."""
        since, until = self._window.since, self._window.until or datetime.now(UTC)
        if since is None:
            return None
        begun = since - (until - since)
        table = self._lake.hours if self._unit == "hour" else self._lake.minutes
        dates = begun.date().isoformat(), since.date().isoformat()
        rows = table.read(self._spark, self._lake.queue, None, lambda one: dates[0] <= one.date <= dates[1])
        inside = f"scope = 'queue' and start >= {_timestamp(begun)} and start < {_timestamp(since)}"
        columns = [*_COUNTS, *_OUTCOMES, *_quantiles(("waiting", "handler"))]
        row = _row(rows.where(inside).agg(*map(expr, columns)).collect()[0])
        return {"since": begun, "until": since, **row, "error_ratio": _ratio(row["errors"] or 0, row["outcomes"] or 0)}

    @cached_property
    def _due(self) -> list[tuple[datetime, int]]:
        """When delays of open messages are over, and how many, in whole units: nothing else has happened to them."""
        if not self._accounts.open["delayed"]:
            return []
        rows = self._lake.open_messages.read(self._spark, self._lake.queue, ("state", "due_at"))
        over = rows.where("state = 'delayed'").selectExpr(f"date_trunc('{self._unit}', due_at) as at")
        found = over.where(f"at < {_timestamp(self._window.until or datetime.now(UTC))}").groupBy("at").count()
        return [(_utc(row.at), row["count"]) for row in found.collect()]

    @cached_property
    def _levels_at_the_end(self) -> dict[str, int]:
        """How many messages were in each state at the end of the window, without delays that are over."""
        found = self._after("queue", [f"coalesce(sum({name}), 0L) as {name}" for name in _CHANGES])
        after = found[0] if found else dict.fromkeys(_CHANGES, 0)
        return {
            state: self._accounts.open[state] - self._accounts.purged[state] - after[f"{state}_change"]
            for state in STATES
        }

    @cached_property
    def _step(self) -> timedelta:
        """The length of the buckets of the plots."""
        first, last = self._total["first_at"], self._total["last_at"]
        size = UNITS[self._unit]
        return size if first is None else bucket_size(floor_time(first, size), last, size) * size

    def _bucket(self, column: str = "start") -> str:
        step = int(self._step.total_seconds() * 1_000_000)
        return f"timestamp_micros(unix_micros({column}) div {step} * {step})"

    @cached_property
    def _over_time(self) -> list[Row]:
        """A row for each bucket in which something happened, or delayed messages became due."""
        earlier = "over (partition by bucket order by start, refresh rows between unbounded preceding and 1 preceding)"
        rows = self._inside("queue").selectExpr("*", f"{self._bucket()} as bucket")
        rows = rows.selectExpr("*", f"peak + coalesce(sum({BACKLOG_CHANGE}) {earlier}, 0L) as crest")
        columns = [*_COUNTS, *_OUTCOMES, *(f"sum({name}) as {name}" for name in _CHANGES), "max(crest) as crest"]
        found = rows.groupBy("bucket").agg(*map(expr, columns + _quantiles())).collect()
        buckets = {_utc(row.bucket): _row(row) for row in found}
        nothing: Row = dict.fromkeys((*COUNTED, "outcomes", "errors", "removed", *_CHANGES, "crest"), 0)
        nothing |= dict.fromkeys(_quantile_names(SPREADS))
        levels = dict(self._levels_at_the_end)
        for at, count in self._due:
            if self._last_at is None or at > self._last_at:
                continue
            levels["waiting"], levels["delayed"] = levels["waiting"] + count, levels["delayed"] - count
            if self._window.since is None or at >= self._window.since:
                row = buckets.setdefault(floor_time(at, self._step), dict(nothing))
                row |= {
                    "waiting_change": row["waiting_change"] + count,
                    "delayed_change": row["delayed_change"] - count,
                }
        over_time = []
        for start in sorted(buckets, reverse=True):
            row, ended = buckets[start], dict(levels)
            levels = {state: levels[state] - row.pop(f"{state}_change") for state in STATES}
            before, backlog = sum(levels.values()), sum(ended.values())
            peak = {"backlog": backlog, "peak": max(before + row.pop("crest"), before, backlog)}
            row.pop("bucket", None)
            over_time.append({"start": start, "seconds": self._step.total_seconds(), **row, **ended, **peak})
        return over_time[::-1]

    def _tenants(self) -> list[Row]:
        """Return what each tenant published and got, and what it asked for."""
        sums = [f"sum({name}) as {name}" for name in ("served", "withdrawn", "unserved", "unserved_delayed_change")]
        sums += ["sum(removed_waiting + removed_delayed) as removed", "sum(removed_delayed) as removed_delayed"]
        columns = [*_COUNTS, *sums, *_quantiles(("waiting", "handler"))]
        inside = {
            row.name: _row(row) for row in self._inside("tenant").groupBy("name").agg(*map(expr, columns)).collect()
        }
        entered = "sum(published + redriven) as published"
        after = {row.name: row for row in self._after("tenant", [entered, *sums], "name")}
        waiting = self._unserved()
        purged: dict[str, int] = defaultdict(int)
        for one in self._accounts.found("purged"):
            purged[one["tenant"] or ""] += one["messages"] if one["state"] != "in_flight" else 0
        delivered = sum(one["delivered"] for one in inside.values())
        nothing: Row = dict.fromkeys((*COUNTED, "served", *_WAITED), 0)
        nothing |= dict.fromkeys(_quantile_names(("waiting", "handler")))
        rows = []
        for name in {*inside, *waiting}:
            row = inside.get(name, nothing) | {"tenant": name or None}
            unclaimed, delayed, due = waiting.get(name, (0, 0, 0))
            not_due = delayed - due - (after[name].unserved_delayed_change if name in after else 0)
            # What waited when the window began: what waits now, without what came and went since.
            begun = unclaimed - purged[name] - _net(row) - (_net(after[name].asDict()) if name in after else 0)
            begun = 0 if self._window.since is None else begun
            asked = begun + row["published"] - row["withdrawn"] - row["removed"]
            row["demand"] = asked - max(0, not_due - row["removed_delayed"])
            row["share"] = _ratio(row["delivered"], delivered)
            if sum(row[one] for one in COUNTED) + max(0, row["demand"]) > 0:
                rows.append({key: value for key, value in row.items() if key not in (*_WAITED, "name")})
        return sorted(rows, key=lambda one: (-one["delivered"], one["tenant"] or ""))

    def _unserved(self) -> dict[str, tuple[int, int, int]]:
        """Return how many open messages of each tenant nobody has had, how many are delayed, and how many were due."""
        if not any(self._accounts.open.values()):
            return {}
        rows = self._lake.open_messages.read(self._spark, self._lake.queue, ("state", "tenant", "due_at", "deliveries"))
        last, until = self._last_at, self._window.until
        ends = [one for one in (until, last and last + timedelta(microseconds=1)) if one is not None]
        is_due = f"coalesce(due_at < {_timestamp(min(ends, default=datetime.now(UTC)))}, false)"
        counts = (
            rows.where("deliveries = 0")
            .groupBy(expr("coalesce(tenant, '') as name"))
            .agg(*map(expr, ("count(*)", "count_if(state = 'delayed')", f"count_if(state = 'delayed' and {is_due})")))
        )
        return {row[0]: tuple(row)[1:] for row in counts.collect()}

    def _tenants_over_time(self, tenants: list[Row]) -> list[Row]:
        """Return a row for each bucket, and each of the tenants with the most deliveries."""
        if len(tenants) < 2:
            return []
        busiest = [one["tenant"] or "" for one in tenants[:_MOST_TENANTS]]
        names = ("published", "delivered", "acked", "failed", "dead")
        rows = self._inside("tenant").where(col("name").isin(busiest))
        rows = rows.groupBy(expr(f"{self._bucket()} as start"), "name").agg(*map(expr, _COUNTS))
        return [
            {"start": _utc(row.start), "tenant": row.name or None} | {name: row[name] for name in names}
            for row in rows.orderBy("start", "name").collect()
        ]

    def _consumers(self) -> list[Row]:
        """Return what each consumer has claimed and handled."""
        rows = self._inside("consumer").groupBy("name").agg(*map(expr, [*_COUNTS, *_OUTCOMES, *_TIMES])).collect()
        wanted = ("delivered", "acked", "failed", "retried", "dead", "errors", "outcomes", "first_at", "last_at")
        found = [{"consumer": row.name} | {name: _row(row)[name] for name in wanted} for row in rows]
        return sorted(found, key=lambda one: (-one["delivered"], one["consumer"]))

    def _failures(self) -> list[Row]:
        columns = [*(f"sum({name}) as {name}" for name in ("failed", "retried", "dead"))]
        columns += [
            "sum(failed + retried + dead) as total",
            "hll_sketch_estimate(hll_union_agg(messages_sketch)) as messages",
        ]
        rows = (
            self._inside("error")
            .where("name <> ''")
            .groupBy(expr("name as error_type"))
            .agg(*map(expr, columns))
            .collect()
        )
        return [row.asDict() for row in sorted(rows, key=lambda row: (-row.total, row.error_type))]

    def _dead_letters(self) -> list[Row]:
        columns = ["sum(dead) as letters", "hll_sketch_estimate(hll_union_agg(tenants_sketch)) as tenants", *_TIMES]
        columns += ["max_by(newest_id, last_at) filter (where newest_id is not null) as newest_id"]
        keys = (expr("nullif(name, '') as error_type"), expr("nullif(reason, '') as reason"))
        rows = self._inside("error").where("dead > 0").groupBy(*keys).agg(*map(expr, columns)).collect()
        return [
            _row(row) for row in sorted(rows, key=lambda row: (-row.letters, row.error_type or "", row.reason or ""))
        ]

    def _add_error_texts(self, tables: Mapping[str, list[Row]]) -> None:
        since = "" if self._window.since is None else self._window.since.date().isoformat()
        has_any = tables["failures"] or tables["dead_letters"]
        texts = newest_error_texts(self._spark, self._lake.location, self._lake.queue, since) if has_any else {}
        newest: dict[str, tuple[datetime, str]] = {}
        for (error_type, _), found in texts.items():
            newest[error_type] = max(newest.get(error_type, found), found)
        for one in tables["dead_letters"]:
            one["error"] = texts.get((one["error_type"] or "", one["reason"] or ""), (None, None))[1]
        for one in tables["failures"]:
            one["error"] = newest.get(one["error_type"], (None, None))[1]

    # -- the verdict

    def _conservation(self) -> list[Row]:
        """Return where the messages are that entered in the time that is kept."""
        table, names = self._lake.hours, (*ENTERING, *LEAVING)
        sums = table.read(self._spark, self._lake.queue, ("scope", *names)).where("scope = 'queue'")
        row = sums.agg(*(expr(f"coalesce(sum({name}), 0L) as {name}") for name in names)).collect()[0]
        entered, left = sum(row[name] for name in ENTERING), {name: row[name] for name in LEAVING}
        purged, lost = sum(self._accounts.purged.values()), self._accounts.count("lost")
        remaining = self._accounts.remaining
        earlier = sum(left.values()) + purged + lost + remaining - entered
        accounts = {"entered": entered, "entered_unseen": earlier, **left, "purged": purged, "lost": lost}
        accounts |= {"remaining": remaining, "foreign": self._accounts.foreign}
        return [{"account": name, "messages": count} for name, count in accounts.items()]

    def _outcome(self, verdict: Verdict) -> Row:
        return {
            "verdict": verdict.verdict,
            "because": verdict.because,
            "balanced_since": verdict.since,
            "accounted_for": list(verdict.accounted_for),
            "missing_serials": self._accounts.count("missing"),
            "odd": self._accounts.count("violation"),
            "remaining": self._accounts.remaining,
            "held": self._accounts.held,
            "foreign": self._accounts.foreign,
        }


def _net(row: Mapping[str, Any]) -> int:
    """Return by how many messages that nobody has had these counts change their number."""
    return int(row["published"] - row["served"] - row["withdrawn"] - row["unserved"] - row["removed"])


def _row(found: Any) -> Row:
    """Return a row with times in UTC, and a column for each quantile, in seconds."""
    row: Row = {}
    for name, value in found.asDict().items():
        if name.endswith("_q"):
            row |= {
                f"{name[:-2]}_p{percent}": None if value is None else one / 1_000_000
                for percent, one in zip(PERCENTS, value or [0] * len(PERCENTS), strict=True)
            }
        else:
            row[name] = _utc(value) if isinstance(value, datetime) else value
    return row


def _utc(time: datetime) -> datetime:
    """Return a time that Spark has given, in the zone of this machine, with its zone."""
    return time.astimezone(UTC)


def _timestamp(time: datetime) -> str:
    seconds = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return f"timestamp_micros({seconds}L)"


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def jain(served: list[float]) -> float | None:
    """Return Jain's index: 1 if all are served equally often, 1/n if one of n gets everything."""
    return sum(served) ** 2 / (len(served) * sum(one * one for one in served)) if any(served) else None
