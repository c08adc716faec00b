"""Brings messages, open messages and counts up to the archived journal, in Spark SQL.

A refresh reads the entries that are new and the messages that were open, and nothing else, so its cost follows what is
new. It first commits up to which entry of each journal it goes. A run that dies is repeated over the same entries by
the next one, and each table takes the rows of a refresh once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import expr

from redis_message_queue.spark.job_options import RefreshOptions
from redis_message_queue.spark.jobs.archive import application_of, journal_files, journal_table
from redis_message_queue.spark.jobs.archive_tables import DataFile, location_of
from redis_message_queue.spark.jobs.job import (
    JobProgress,
    JobResult,
    OnProgress,
    ignore_progress,
    own_session,
    require_classic,
    translate_errors,
)
from redis_message_queue.spark.jobs.lake import (
    BACKLOG_CHANGE,
    CLAIMS,
    COUNTERS,
    ENTERING,
    EVENTS,
    LEAVING,
    MESSAGE,
    REMOVED_FROM,
    SPREADS,
    STATES,
    Lake,
)
from redis_message_queue.spark.jobs.records import records_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RefreshOptions", "RefreshResult", "refresh"]

EXAMPLES = 5  # ids that an incident names
_SKETCH_SIZE = 400  # of KLL: a quantile is off by at most 0.7 % of the ranks
Incident = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RefreshResult(JobResult):
    """What a refresh has added."""

    queue: str
    path: str
    entries: int
    ended: int  # messages
    open: int
    number: int  # of the refresh


def refresh(spark: "SparkSession", options: RefreshOptions, on_progress: OnProgress = ignore_progress) -> RefreshResult:
    """Bring the tables of a queue up to its archived journal.

    Raises:
        ArchiveError: The queue has no archive at this path, or files of it are missing or were changed.
    """
    require_classic(spark, "the refresh")
    location = location_of(options.path, options.storage_options, spark)
    journal_files(location, options.queue)
    with translate_errors("the refresh"):
        return refresh_tables(spark, Lake(location, options.queue), on_progress)


def refresh_tables(spark: "SparkSession", lake: Lake, on_progress: OnProgress = ignore_progress) -> RefreshResult:
    """Finish a refresh that a dead run has begun, and then do what is new."""
    result = RefreshResult(queue=lake.queue, path=lake.location.uri, entries=0, ended=0, open=0, number=0)
    while (plan := Plan.find(lake)) is not None:
        with own_session(spark, plan.expected) as own:
            step = Refresh(own, lake, plan, on_progress).run()
        result = replace(step, entries=result.entries + step.entries, ended=result.ended + step.ended)
    return result


def seconds_of(spark: "SparkSession", lake: Lake) -> "DataFrame":
    """Return the counts of a short journal by second, which are not kept."""
    files = journal_table(lake.location).files(lake.queue)
    return Refresh(spark, lake, Plan(0, {}, _targets(lake, {}, files), files)).counts("second")


# -- the plan


@dataclass(frozen=True)
class Plan:
    """Which journal entries a refresh covers."""

    number: int
    covered: Mapping[str, int]  # the last serial of each journal that was covered before
    target: Mapping[str, int]  # the last serial of each journal that it covers
    files: list[DataFile] = field(repr=False)

    @classmethod
    def find(cls, lake: Lake) -> "Plan | None":
        """Return the plan of a run that has died, or a new one that is committed first. None if nothing is new."""
        done = lake.version(lake.open_messages)
        rows = lake.rows(lake.refreshes)
        before = {row["journal"]: row for row in rows if row["refresh"] == done}
        covered = {name: row["serial"] for name, row in before.items()}
        through = min((row["through"] for row in before.values()), default="")
        planned = {row["journal"]: row["serial"] for row in rows if row["refresh"] == done + 1}
        files = journal_table(lake.location).files(lake.queue)
        new = [one for one in files if _may_be_new(one, covered, through)]
        target = planned or _targets(lake, covered, new)
        if target == covered:
            return None
        if not planned:
            today = datetime.now(UTC).date().isoformat()
            newest = max((one.date for one in new), default=today)
            rows = [{**row, "refresh": done} for row in before.values()]
            rows += [
                {"refresh": done + 1, "journal": name, "serial": serial, "through": newest}
                for name, serial in target.items()
            ]
            lake.commit(lake.refreshes, lake.write_rows(lake.refreshes, today, rows), done + 1, replace=True)
            return cls.find(lake)  # as it was committed, by this run or by another one
        return cls(done + 1, covered, target, new)

    @property
    def expected(self) -> int:
        return sum(serial - self.covered.get(name, 0) for name, serial in self.target.items())

    @property
    def condition(self) -> str:
        """The entries that it covers, in SQL."""
        ranges = [
            f"(journal = {_quoted(name)} and serial > {self.covered.get(name, 0)} and serial <= {serial})"
            for name, serial in self.target.items()
            if serial > self.covered.get(name, 0)
        ]
        return " or ".join(ranges)


def _may_be_new(file: DataFile, covered: Mapping[str, int], through: str) -> bool:
    """Return whether a file may have entries that are not covered."""
    first, last, *_ = file.statistics.get("journal", ("", "~"))
    if first == last:
        return bool(covered.get(first, 0) < file.statistics["serial"][1])
    # A file of several journals is made by a compaction, which leaves the entries of a date together.
    return file.date >= through


def _targets(lake: Lake, covered: Mapping[str, int], files: list[DataFile]) -> dict[str, int]:
    """Return the last archived serial of each journal."""
    table = journal_table(lake.location)
    names = {one.statistics["journal"][0] for one in files if _is_of_one_journal(one)}
    mixed = [one.path for one in files if not _is_of_one_journal(one)]
    if mixed:
        found = table.read_locally(lake.queue, ("journal",), lambda one: one.path in mixed)
        names |= set(found.column("journal").unique().to_pylist())
    delta = table.open()
    assert delta is not None  # it has files
    return {
        name: max(covered.get(name, 0), delta.transaction_version(application_of(lake.queue, name)) or 0)
        for name in sorted({*covered, *names})
    }


def _is_of_one_journal(file: DataFile) -> bool:
    first, last, *_ = file.statistics.get("journal", ("", "~"))
    return bool(first == last)


# -- the refresh


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _in(*events: str) -> str:
    return f"event in ({', '.join(map(_quoted, events))})"


def _microseconds(later: str, earlier: str) -> str:
    return f"greatest(0L, unix_micros({later}) - unix_micros({earlier}))"


_OUTCOME = (
    f"({_in('acked', 'handed_off', 'failed', 'retried', 'discarded')} or event = 'dead' and error_type is not null)"
)
_IS_CLAIM, _ENTERS, _LEAVES = _in(*CLAIMS), _in(*ENTERING), _in(*LEAVING)
_ENTRY = (
    *("journal", "serial", "at", "event", "id", "tenant", "due", "count", "failures", "error_type", "reason"),
    *("replay_of", "started", "handled", "headers", "by", "payload", "target"),
)
# Where an entry leaves its message, and from when it can be claimed there.
_LEVEL = (
    f"case when {_in(*ENTERING, 'requeued')} then 'waiting' when {_in('delayed', 'retried')} then 'delayed' "
    f"when {_IS_CLAIM} then 'in_flight' end as level"
)
_AVAILABLE = (
    f"case when {_in(*ENTERING, 'requeued')} then at when {_in('delayed', 'retried')} then due end as available"
)
_ROWS_BEFORE = "rows between unbounded preceding and 1 preceding"
_BEFORE = f"over (partition by key order by serial {_ROWS_BEFORE})"
_PREVIOUS = "lag(struct(level, available, claimed, by)) over (partition by key order by serial) as previous"
_DELIVERED_BEFORE = (
    f"coalesce(max(if(event = 'carried', was.deliveries, int({_IS_CLAIM}))) {_BEFORE}, 0) > 0 as delivered_before"
)
_TIMES = {
    "waiting": "if(event = 'claimed' and previous.available is not null, "
    f"{_microseconds('at', 'previous.available')}, null)",
    "processing": f"if({_OUTCOME} and previous.claimed is not null, {_microseconds('at', 'previous.claimed')}, null)",
    "handler": f"if({_OUTCOME} and previous.claimed is not null, "
    f"coalesce(handled, {_microseconds('at', 'previous.claimed')}), null)",
    "prefetch": f"if({_OUTCOME} and previous.claimed is not null and started is not null, "
    f"{_microseconds('started', 'previous.claimed')}, null)",
}
# A delay that is over has let its message wait since.
_IS_DUE = "(previous.level = 'delayed' and previous.available < at)"
_REMOVED = {
    state: f"if({_in('purged', 'deleted')} and target = {_quoted(target)}, coalesce(count, 0L), 0L)"
    for target, state in REMOVED_FROM.items()
}
_LEFT_LEVEL = f"if({_IS_DUE}, 'waiting', previous.level)"
_IS_FIRST = f"({_IS_CLAIM} and not delivered_before and count <= 1)"
_COUNTED = {
    **{event: f"event = {_quoted(event)}" for event in EVENTS},
    "entries": "event <> 'due'",
    "outcomes": _OUTCOME,
    "errors": f"({_OUTCOME} and not {_in('acked', 'handed_off', 'discarded')})",
    "redelivered": f"({_IS_CLAIM} and (delivered_before or count > 1))",
    "served": _IS_FIRST,
    # A message without an entry before this one entered before the journal began, and was never counted.
    "withdrawn": "(event = 'cancelled' and not delivered_before and previous is not null)",
    "unserved": f"({_LEAVES} and event <> 'cancelled' and not delivered_before and previous is not null)",
}
_DUE_CHANGES = {"waiting": 1, "in_flight": 0, "delayed": -1}
_CHANGES = {
    state: f"if(event = 'due', {_DUE_CHANGES[state]}L, bigint(coalesce(level = '{state}', false)) "
    f"- bigint(coalesce({_LEFT_LEVEL} = '{state}', false)) - {_REMOVED[state]})"
    for state in STATES
}
_SUMMED = {
    **{f"removed_{state}": rule for state, rule in _REMOVED.items()},
    **{f"{state}_change": rule for state, rule in _CHANGES.items()},
    "unserved_delayed_change": f"if(delivered_before, 0L, {_CHANGES['delayed']} + {_REMOVED['delayed']})",
}


@dataclass
class Refresh:
    """One refresh of a queue."""

    spark: "SparkSession"
    lake: Lake
    plan: Plan
    on_progress: OnProgress = ignore_progress
    _persisted: list["DataFrame"] = field(default_factory=list)

    def run(self) -> RefreshResult:
        """Commit incidents, messages, counts and, when all else is there, the open messages."""
        lake, number = self.lake, self.plan.number
        self.on_progress(JobProgress("planned", 0, self.plan.expected))
        try:
            entries, incidents = self._journals()
            messages = self._messages(incidents)
            rows = [{"refresh": number, **one} for one in (*incidents, *self._purges())]
            today = datetime.now(UTC).date().isoformat()
            # Before the messages: those that a dead run has committed look like messages that have ended before.
            self._commit(lake.incidents, lake.write_rows(lake.incidents, today, rows))
            ended = lake.write(lake.messages, messages.where("finished_at is not null"))
            self._commit(lake.messages, ended)
            minutes = self._keep(self.counts())
            for table, counts in ((lake.minutes, minutes), (lake.hours, _hours(minutes))):
                self._commit(
                    table, lake.write(table, counts.selectExpr("*", "string(date(start)) as date").coalesce(2))
                )
            still = lake.write(lake.open_messages, messages.where("finished_at is null"))
            self._commit(lake.open_messages, still, replace=True)
        finally:
            for one in self._persisted:
                one.unpersist()
        self.on_progress(JobProgress("refreshed", entries, self.plan.expected))
        return RefreshResult(
            queue=lake.queue,
            path=lake.location.uri,
            entries=entries,
            ended=sum(one.rows for one in ended),
            open=sum(one.rows for one in still),
            number=number,
        )

    def _commit(self, table: Any, files: list[DataFile], *, replace: bool = False) -> None:
        self.lake.commit(table, files, self.plan.number, replace=replace)
        self.on_progress(JobProgress("committed", detail=table.name))

    def _keep(self, frame: "DataFrame") -> "DataFrame":
        self._persisted.append(frame.persist())
        return frame

    @cached_property
    def _facts(self) -> "DataFrame":
        """The entries that are new, after a row for each open message, each with the entry before it."""
        table, names = journal_table(self.lake.location), {one.path for one in self.plan.files}
        entries = table.read(self.spark, self.lake.queue, _ENTRY, lambda one: one.path in names)
        entries = entries.where(self.plan.condition).selectExpr(
            *_ENTRY, _LEVEL, _AVAILABLE, f"if({_IS_CLAIM}, at, null) as claimed"
        )
        open_messages = self.lake.open_messages.read(self.spark, self.lake.queue, MESSAGE.names)
        if not self.plan.covered:  # from the first entry on
            open_messages = open_messages.limit(0)
        carried = open_messages.selectExpr(
            *("journal", "0L as serial", "'carried' as event", "id", "state as level"),
            "available_at as available",
            "if(state = 'in_flight', last_claimed_at, null) as claimed",
            "consumer as by",
            f"struct({', '.join(MESSAGE.names)}) as was",
        )
        both = entries.unionByName(carried, allowMissingColumns=True)
        own = "if(id is null or event = 'duplicate', concat(journal, ' ', serial), id) as key"
        linked = both.selectExpr("*", own).selectExpr("*", _PREVIOUS, _DELIVERED_BEFORE)
        return self._keep(linked.selectExpr("*", *(f"{value} as {name}_us" for name, value in _TIMES.items())))

    # -- journals

    def _journals(self) -> tuple[int, list[Incident]]:
        """Return how many entries there are, and what is missing, twice, or lost with a journal that has ended."""
        found = (
            self._facts.where("event <> 'carried'")
            .groupBy("journal")
            .agg(*map(expr, ("count(*) as rows", "sum(serial) as sum", "bit_xor(serial) as xor", "min(at) as began")))
            .collect()
        )
        incidents: list[Incident] = []
        rows = {row.journal: row for row in found}
        for name, last in self.plan.target.items():
            first, row = self.plan.covered.get(name, 0) + 1, rows.get(name)
            is_whole = row is not None and (row["rows"], row["sum"], row["xor"]) == _series(first, last)
            if last >= first and not is_whole:
                incidents += self._gaps(name, first, last)
        self._lost = dict(_replaced(rows.values(), {*self.plan.covered, *rows}))
        return sum(row["rows"] for row in found), incidents

    def _gaps(self, journal: str, first: int, last: int) -> Iterator[Incident]:
        """Return the serials that are missing, and how many entries are there twice."""
        runs = (
            self._facts.where(f"event <> 'carried' and journal = {_quoted(journal)}")
            .selectExpr(
                "serial",
                "at",
                "lag(serial) over (order by serial) as before",
                "lag(at) over (order by serial) as after_at",
            )
            .where(f"serial <> coalesce(before, {first - 1}) + 1")
            .orderBy("serial")
            .collect()
        )
        repeated = sum(row.before is not None and row.serial == row.before for row in runs)
        now = datetime.now(UTC)
        if repeated:
            yield {"at": now, "kind": "repeated", "journal": journal, "messages": repeated}
        for row in runs:
            known = first - 1 if row.before is None else row.before
            if row.serial > known + 1:
                gap = {"first_serial": known + 1, "messages": row.serial - known - 1}
                times = {"after_at": _utc(row.after_at), "before_at": _utc(row.at)}
                yield {"at": now, "kind": "missing", "journal": journal, **gap, **times}
        end = self._facts.where(f"event <> 'carried' and journal = {_quoted(journal)}").selectExpr(
            "max(serial)", "max(at)"
        )
        (greatest, at) = end.collect()[0]
        known = first - 1 if greatest is None else greatest
        if known < last:
            gap = {"first_serial": known + 1, "messages": last - known, "after_at": _utc(at)}
            yield {"at": now, "kind": "missing", "journal": journal, **gap}

    def _purges(self) -> list[Incident]:
        """Return what operators have removed: the journal does not name these messages, so their rows stay open."""
        removed = (
            self._facts.where(_in("purged", "deleted"))
            .selectExpr("journal", "tenant", "at", "coalesce(count, 0L) as messages", f"{_state_of('target')} as state")
            .where("state is not null and messages > 0")
            .groupBy("journal", "tenant", "state")
            .agg(expr("max(at) as at"), expr("sum(messages) as messages"))
        )
        return [{"kind": "purged", **row.asDict(), "at": _utc(row.at)} for row in removed.collect()]

    # -- messages

    def _messages(self, incidents: list[Incident]) -> "DataFrame":
        """Return a row for each message that was open or has new entries. Adds what is wrong with them."""
        found = self._facts.where("key = id").groupBy(expr("key as id")).agg(*_message_columns())
        rows = self._keep(self._with_records(found).selectExpr(*_finished(self._lost), "odd", "is_known"))
        counts = rows.selectExpr(
            "count_if(odd) as odd",
            "count_if(not is_known) as unknown",
            "count_if(replay_of is not null and payload is null) as without_payload",
        ).collect()[0]
        ended_before = self.spark.createDataFrame([], "id string")
        if counts.unknown:
            # Only these are looked up: all others were open, or have entered now.
            ended_before = self._keep(self._look_up(rows.where("not is_known").select("id"), ("id",)).distinct())
            again = ended_before.count()
            rows = rows.join(ended_before, "id", "left_anti")
            incidents += self._incidents("violation", again, ended_before)
            incidents += self._incidents("unseen", counts.unknown - again, rows.where("not is_known"))
        incidents += self._incidents("violation", counts.odd, rows.where("odd"))
        if counts.without_payload:
            rows = self._with_payloads(rows)
        incidents += self._lost_messages(rows)
        return rows.selectExpr("*", "string(date(coalesce(finished_at, published_at, current_timestamp()))) as date")

    def _with_records(self, rows: "DataFrame") -> "DataFrame":
        """Add what only the records of settled messages have: the texts of errors, and headers without payloads."""
        oldest = min((one.date for one in self.plan.files), default="")
        table = records_table(self.lake.location)
        if not any(one.date >= oldest for one in table.files(self.lake.queue)):
            return rows.selectExpr("*", "cast(null as string) as error", "cast(null as string) as traceback")
        columns = ("id", "error", "traceback", "headers", "finished_at")
        records = table.read(self.spark, self.lake.queue, columns, lambda one: one.date >= oldest)
        newest = records.groupBy("id").agg(
            expr("max_by(nullif(error, ''), finished_at) as error"),
            expr("max_by(traceback, finished_at) as traceback"),
            expr("max_by(headers, finished_at) as record_headers"),
        )
        joined = rows.join(newest, "id", "left")
        return joined.selectExpr("* except (headers, record_headers)", "coalesce(headers, record_headers) as headers")

    def _with_payloads(self, rows: "DataFrame") -> "DataFrame":
        """Give a redriven message the payload of the message that it repeats."""
        wanted = rows.where("payload is null and replay_of is not null").selectExpr("replay_of as id").distinct()
        columns = ("id", "payload", "headers")
        first = self._look_up(wanted, columns).unionByName(rows.select(*columns).join(wanted, "id", "left_semi"))
        first = first.groupBy("id").agg(
            expr("max(payload) as first_payload"), expr("first(headers, true) as first_headers")
        )
        joined = rows.join(first.withColumnRenamed("id", "replay_of"), "replay_of", "left")
        return joined.selectExpr(
            "* except (payload, headers, first_payload, first_headers)",
            "coalesce(payload, first_payload) as payload",
            "coalesce(headers, first_headers) as headers",
        )

    def _look_up(self, ids: "DataFrame", columns: tuple[str, ...]) -> "DataFrame":
        """Return the ended messages of earlier refreshes with these ids."""
        span = ids.selectExpr("min(id)", "max(id)").collect()[0]
        known = self.lake.messages.read(
            self.spark, self.lake.queue, columns, lambda one: one.may_lie_within("id", span[0] or "", span[1] or "")
        )
        return known.join(ids, "id", "left_semi")

    def _incidents(self, kind: str, count: int, rows: "DataFrame") -> list[Incident]:
        if not count:
            return []
        ids = [row.id for row in rows.select("id").orderBy("id").limit(EXAMPLES).collect()]
        return [{"at": datetime.now(UTC), "kind": kind, "messages": count, "ids": ids}]

    def _lost_messages(self, rows: "DataFrame") -> list[Incident]:
        """Return how many messages ended with their journal, without those that an operator had removed."""
        known = self.lake.rows(self.lake.incidents) if self._lost else []
        ended = {one["journal"] for one in known if one["kind"] == "lost" and one["refresh"] < self.plan.number}
        fresh = {name: at for name, at in self._lost.items() if name not in ended}
        if not fresh:
            return []
        lost = {row.journal: row["count"] for row in rows.where("state = 'lost'").groupBy("journal").count().collect()}
        purged = Counter[str]()
        for one in (*known, *self._purges()):
            purged[one["journal"]] += one["messages"] if one["kind"] == "purged" else 0
        return [
            {"kind": "lost", "journal": name, "at": at, "messages": max(0, lost.get(name, 0) - purged[name])}
            for name, at in fresh.items()
        ]

    # -- counts

    def counts(self, unit: str = "minute") -> "DataFrame":
        """Return the counts by minute or second: of each tenant, of the queue, and of each consumer and error."""
        facts = self._facts.where("event <> 'carried' and at is not null")
        same = ("tenant", "journal", "serial", "delivered_before")
        due = facts.where(_IS_DUE).selectExpr("previous.available as at", "'due' as event", *same)
        facts = facts.unionByName(due, allowMissingColumns=True).selectExpr(
            *("at", "serial", "journal", "id", "event", "tenant", "error_type", "reason", "count", "target"),
            *("level", "previous", "delivered_before", *(f"{name}_us" for name in SPREADS)),
            "coalesce(by, previous.by) as consumer",
            f"date_trunc('{unit}', at) as start",
        )
        # For what hardly shrinks when each task sums its own rows first. Consumers and errors are few.
        by_start = facts.repartition("start")
        sums = [f"count_if({rule}) as {name}" for name, rule in _COUNTED.items()]
        sums += [f"sum({rule}) as {name}" for name, rule in _SUMMED.items()]
        sums += [
            "min(at) filter (where event <> 'due') as first_at",
            "max(at) filter (where event <> 'due') as last_at",
        ]
        sketches = [f"kll_sketch_agg_bigint({name}_us, {_SKETCH_SIZE}) as {name}_sketch" for name in SPREADS]
        tenants = by_start.groupBy("start", expr("coalesce(tenant, '') as name")).agg(*map(expr, sums + sketches))
        tenants = self._keep(tenants)
        queue = tenants.groupBy("start").agg(*map(expr, _merged()))
        queue = queue.join(_peaks(by_start), "start", "left").selectExpr("*", "'queue' as scope", "'' as name")
        consumers = facts.where("consumer is not null").groupBy("start", expr("consumer as name")).agg(*map(expr, sums))
        errors = (
            facts.where(f"event = 'dead' or {_in('failed', 'retried')} and error_type is not null")
            .groupBy("start", expr("coalesce(error_type, '') as name"), expr("coalesce(reason, '') as reason"))
            .agg(
                *map(expr, sums),
                expr("max_by(id, at) filter (where event = 'dead') as newest_id"),
                expr("hll_sketch_agg(id) as messages_sketch"),
                expr("hll_sketch_agg(coalesce(tenant, '')) filter (where event = 'dead') as tenants_sketch"),
            )
        )
        tenants = tenants.selectExpr("* except (processing_sketch, prefetch_sketch)", "'tenant' as scope")
        cells = queue.unionByName(tenants, allowMissingColumns=True)
        cells = cells.unionByName(consumers.selectExpr("*", "'consumer' as scope"), allowMissingColumns=True)
        cells = cells.unionByName(errors.selectExpr("*", "'error' as scope"), allowMissingColumns=True)
        return cells.selectExpr("* except (peak)", "coalesce(peak, 0L) as peak", f"{self.plan.number}L as refresh")


def _peaks(facts: "DataFrame") -> "DataFrame":
    """Return by how much the backlog rises in each minute above that at its start."""
    change = " + ".join(_CHANGES.values())
    running = facts.where(f"{change} <> 0").selectExpr(
        "start", f"sum({change}) over (partition by start order by at, journal, serial) as level"
    )
    return running.groupBy("start").agg(expr("greatest(0L, max(level)) as peak"))


def _merged() -> list[str]:
    """The sums of rows of counts."""
    found = [f"sum({name}) as {name}" for name in COUNTERS]
    found += ["min(first_at) as first_at", "max(last_at) as last_at"]
    return found + [f"kll_merge_agg_bigint({name}_sketch) as {name}_sketch" for name in SPREADS]


def _hours(minutes: "DataFrame") -> "DataFrame":
    """Return the counts by hour."""
    hour = "date_trunc('hour', start)"
    earlier = f"over (partition by scope, name, reason, {hour} order by start {_ROWS_BEFORE})"
    crests = minutes.selectExpr("*", f"peak + coalesce(sum({BACKLOG_CHANGE}) {earlier}, 0L) as crest")
    return crests.groupBy(expr(f"{hour} as start"), "scope", "name", "reason", "refresh").agg(
        *map(expr, _merged()),
        expr("max(crest) as peak"),
        expr("max_by(newest_id, last_at) filter (where newest_id is not null) as newest_id"),
        expr("hll_union_agg(messages_sketch) as messages_sketch"),
        expr("hll_union_agg(tenants_sketch) as tenants_sketch"),
    )


def _message_columns() -> list[Any]:
    """The columns of a message, from its row as an open message and its new entries."""
    was, is_new = "first(was, true)", "event <> 'carried'"

    def newest(column: str, name: str = "") -> str:
        found = f"max_by({column}, serial) filter (where {is_new} and {column} is not null)"
        return f"coalesce({found}, {was}.{name or column}) as {name or column}"

    def number(name: str, rule: str) -> str:
        return f"coalesce({was}.{name}, 0L) + count_if(coalesce({rule}, false)) as {name}"

    last = f"max_by(struct(event, level, available, journal, serial), serial) filter (where {is_new})"
    entered, left = f"(count_if({_ENTERS}) + count(was))", f"count_if({_LEAVES})"
    columns = (
        *(newest(name) for name in ("tenant", "reason", "error_type", "replay_of", "headers", "payload")),
        newest("due", "due_at"),
        newest("by", "consumer"),
        f"coalesce({was}.published_at, min(at) filter (where {_ENTERS})) as published_at",
        f"coalesce({was}.first_claimed_at, min(at) filter (where {_IS_CLAIM})) as first_claimed_at",
        f"coalesce(max(at) filter (where {_IS_CLAIM}), {was}.last_claimed_at) as last_claimed_at",
        f"greatest(max(count) filter (where {is_new}), {was}.delivery_count) as delivery_count",
        f"greatest(max(failures) filter (where {is_new}), {was}.failures) as failures",
        number("deliveries", _IS_CLAIM),
        number("attempts", _OUTCOME),
        *(
            f"coalesce({was}.{name}, 0) + coalesce(sum({spread}_us), 0) / 1000000D as {name}"
            for name, spread in {"waiting": "waiting", "handling": "handler", "prefetch": "prefetch"}.items()
        ),
        f"{last} as last",
        f"max_by(event, serial) filter (where {_LEAVES}) as ending",
        f"min(at) filter (where {_LEAVES}) as ended_at",
        f"{was} as was",
        f"{entered} > 0 as is_known",
        f"({entered} > 1 or {left} > 1 or {left} = 1 and {last}.level is not null) as odd",
    )
    return [expr(one) for one in columns]


def _finished(lost: Mapping[str, datetime]) -> list[str]:
    """The columns of the tables, in which the messages of a journal that has ended are lost."""
    cases = " ".join(
        f"when {_quoted(name)} then timestamp_micros({round(at.timestamp() * 1_000_000)}L)" for name, at in lost.items()
    )
    lost_at = f"case coalesce(last.journal, was.journal) {cases} end" if cases else "cast(null as timestamp)"
    own = {
        "partition": "int(nullif(split_part(coalesce(last.journal, was.journal), '/', 2), ''))",
        "state": f"coalesce(ending, if({lost_at} is null, if(last is null, was.state, last.level), 'lost'))",
        "finished_at": f"coalesce(ended_at, {lost_at})",
        "available_at": "if(last is null, was.available_at, last.available)",
        "journal": "coalesce(last.journal, was.journal)",
        "serial": "coalesce(last.serial, was.serial)",
    }
    own["partition"] = f"coalesce({own['partition']}, 0)"
    return [f"{own[name]} as {name}" if name in own else name for name in MESSAGE.names]


def _series(first: int, last: int) -> tuple[int, int, int]:
    """Return how many numbers there are from one to another, their sum, and all of them combined by exclusive or."""
    return last - first + 1, (first + last) * (last - first + 1) // 2, _xor_up_to(last) ^ _xor_up_to(first - 1)


def _xor_up_to(number: int) -> int:
    return (number, 1, number + 1, 0)[number % 4]


def _replaced(found: Any, names: set[str]) -> Iterator[tuple[str, datetime]]:
    """Return the journals after which their partition has begun a new one, and when that was.

    A server that was flushed, or lost its data in a failover, begins a new journal for the queue.
    """
    newest: dict[str, Any] = {}
    for row in sorted((row for row in found if row.began is not None), key=lambda row: row.began):
        newest[row.journal.partition("/")[2]] = row
    for name in names:
        now = newest.get(name.partition("/")[2])
        if now is not None and now.journal != name:
            yield name, now.began.astimezone(UTC)


def _state_of(column: str) -> str:
    cases = " ".join(f"when {_quoted(target)} then {_quoted(state)}" for target, state in REMOVED_FROM.items())
    return f"case {column} {cases} end"


def _utc(time: datetime | None) -> datetime | None:
    """Return a time that Spark has given, in the zone of this machine, with its zone."""
    return None if time is None else time.astimezone(UTC)
