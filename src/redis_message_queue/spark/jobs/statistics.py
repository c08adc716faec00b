"""Computes the statistics of a report: the figures of each archived day, and of the messages between days.

Days are counted in tasks. Days that an earlier report has kept are not counted again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from redis_message_queue.spark.job_options import Window
from redis_message_queue.spark.jobs.archive_tables import ArchiveTable, DataFile
from redis_message_queue.spark.jobs.conservation import (
    EXAMPLES,
    JournalRange,
    balance,
    held_at_the_end,
    join_runs,
    journals_in,
    newest_of,
)
from redis_message_queue.spark.jobs.days import Day, DayCounter, ids_of, repeated
from redis_message_queue.spark.jobs.figures import (
    COUNTED,
    LEAVING,
    MINUTE,
    NO_ENTRIES,
    SECOND,
    SHORT,
    SPREADS,
    STATES,
    Counted,
    Figures,
    count_messages,
    hash_ids,
)
from redis_message_queue.spark.jobs.inventory import HeldCount
from redis_message_queue.spark.jobs.job import JobProgress, OnProgress
from redis_message_queue.spark.jobs.kept_days import KeptDays
from redis_message_queue.spark.jobs.report_rows import Row, in_utc
from redis_message_queue.spark.jobs.times import PERCENTS, Array, Frame, Times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ErrorTexts = dict[tuple[str, str], tuple[int, str]]
"""The newest text of each error by type and reason, with its time."""
_MOST_TENANTS = 6  # that have lines of their own
_DAY = 86_400 * SECOND


@dataclass(frozen=True)
class ArchivedQueue:
    """What an archive has of a queue."""

    queue: str
    table: ArchiveTable  # of journals
    files: Sequence[DataFile]
    held: list[HeldCount]  # by each partition
    contents: pa.ChunkedArray  # the ids that were found in the queue; null for what has none
    last_serial: Callable[[str], int]  # the last serial of a journal that was archived
    error_texts: Callable[[], ErrorTexts]


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
    spark: "SparkSession",
    archived: ArchivedQueue,
    on_progress: OnProgress,
    window: Window | None = None,
    kept: KeptDays | None = None,
) -> ReportStatistics:
    """Compute everything. The tables are about the window. The verdict is about all that is archived."""
    window = window or Window()
    days = _Days(spark, archived, on_progress, window, kept)
    found = _Report(days.read(), archived, window).statistics()
    if kept is not None:
        kept.save()
    return found


# -- the days


class _Days:
    """Finds or counts every day of a queue."""

    def __init__(
        self,
        spark: "SparkSession",
        archived: ArchivedQueue,
        on_progress: OnProgress,
        window: Window,
        kept: KeptDays | None,
    ) -> None:
        self._counter = DayCounter(spark, archived.table, window)
        self._on_progress, self._window, self._kept = on_progress, window, kept
        self._files: dict[str, list[DataFile]] = defaultdict(list)
        for one in archived.files:
            self._files[one.date].append(one)
        self._days: dict[str, Day] = {}
        self._never_whole: dict[str, Array] = defaultdict(lambda: np.empty(0, np.uint64))
        self._windowed: set[str] = set()  # days that the window cuts: they are about it alone, and not kept
        self._checked: set[str] = set()  # days whose messages are known not to be in each other

    def read(self) -> dict[str, Day]:
        self._find()
        self._count(set(self._files) - self._days.keys())
        while shared := self._shared():
            self._count(shared)
        return self._days

    def _find(self) -> None:
        for date, files in self._files.items():
            found = None if self._kept is None else self._kept.find(date, files)
            if found is not None:
                self._days[date], self._never_whole[date] = found
                self._checked.add(date)
        remark = self._kept.remark if self._kept is not None else ""
        self._on_progress(JobProgress("kept", len(self._days), len(self._files), f"days{remark and '; '}{remark}"))
        cut = {date for date, day in self._days.items() if day.part_of(self._window) is None}
        self._windowed |= cut | {date for date in self._files.keys() - self._days.keys() if self._is_cut(date)}
        for date in cut:
            del self._days[date]

    def _is_cut(self, date: str) -> bool:
        """Whether the window probably cuts a day. Its entries decide; this saves counting it twice."""
        start = int(pd.Timestamp(date, tz="UTC").value) // 1000
        return any(start < bound < start + _DAY for bound in self._window.bounds)

    def _count(self, dates: Iterable[str]) -> None:
        wanted = {date: self._files[date] for date in dates}
        counted = self._counter.count(wanted, self._never_whole, frozenset(self._windowed))
        for done, (date, day) in enumerate(counted, 1):
            self._days[date] = day
            if self._kept is not None and date not in self._windowed:
                self._days[date] = self._kept.keep(date, wanted[date], day, self._never_whole[date])
            self._on_progress(JobProgress("counted", done, len(wanted), date))
        again = {date for date in wanted.keys() - self._windowed if self._days[date].part_of(self._window) is None}
        if again:
            self._windowed |= again
            self._count(again)

    def _shared(self) -> set[str]:
        """Return the days to count again, because messages that were whole in one are in another as well."""
        if self._days.keys() <= self._checked:
            return set()
        rest = pa.concat_tables([day.rest for day in self._days.values()])
        whole = {date: day.whole() for date, day in self._days.items()}
        fresh = [hashes for date, hashes in whole.items() if date not in self._checked]
        known = [hashes for date, hashes in whole.items() if date in self._checked]
        hashes = repeated([ids_of(rest), *fresh], known)
        if not len(hashes):
            self._checked |= whole.keys()
            return set()
        dates = {date for date, own in whole.items() if np.isin(own, hashes).any()}
        for date in dates:
            self._never_whole[date] = np.union1d(self._never_whole[date], hashes)
            if self._kept is not None:
                self._kept.forget(date)
        return dates


# -- the report


class _Report:
    """Adds the days of a queue up."""

    def __init__(self, days: Mapping[str, Day], archived: ArchivedQueue, window: Window) -> None:
        self._days, self._archived, self._window = list(days.values()), archived, window
        rests = [one.rest for one in self._days if one.rest.num_rows]
        # The messages that are whole in no day: they are open, or lived past midnight.
        self._between: Counted = count_messages(
            pa.concat_tables(rests) if rests else NO_ENTRIES, window, last_at=self._end
        )
        self._parts = [(one, figures) for one in self._days if (figures := self._part(one))]
        self._tables = Figures.add([*(figures for _, figures in self._parts), self._between.figures]).tables
        inside = [one for one, figures in self._parts if figures is one.figures]
        self._inside = inside

    def _part(self, day: Day) -> Figures:
        return day.part_of(self._window) or day.figures  # a day that the window cuts was counted for it

    def statistics(self) -> ReportStatistics:
        journals = journals_in(join_runs([one.runs for one in self._days]), self._archived.last_serial)
        summary, tables = self._summary(), {}
        unit_sizes = {"minute": MINUTE} | ({"second": SECOND} if _is_short(summary) else {})
        for unit, size in unit_sizes.items():
            tables[f"{unit}s"] = self._over_time(unit, size)
        tables["tenants"] = self._tenants()
        tables["failures"], tables["dead_letters"] = self._failures(), self._dead_letters()
        tables["tenants_over_time"] = self._tenants_over_time(tables["tenants"], *list(unit_sizes.items())[-1])
        if tables["failures"]:
            _add_error_texts(tables, self._archived.error_texts())
        else:
            _add_error_texts(tables, {})
        conservation = self._conservation(journals)
        tables["conservation"] = conservation.pop("accounts")
        tables["missing"] = [one for journal in journals for one in journal.missing]
        summary |= {
            "since": self._window.since,
            "until": self._window.until,
            "fairness": jain([one["served"] / one["demand"] for one in tables["tenants"] if one["demand"] > 0]),
            "tenants": len(tables["tenants"]),
            "conservation": conservation,
        }
        return ReportStatistics(self._archived.queue, summary, tables)

    # -- figures

    def _summary(self) -> Row:
        buckets = self._tables["buckets"]
        timed = buckets[buckets["bucket"] >= 0]
        counts = (*COUNTED, "entries", "redriven", "reclaimed", "redelivered", "waits", "outcomes", "errors")
        row: Row = {name: int(buckets[name].sum()) for name in counts}
        row |= {
            "first_at": int(timed["first_at"].min()) if len(timed) else None,
            "last_at": int(timed["last_at"].max()) if len(timed) else None,
        }
        row |= _spreads(SPREADS, Times.merge(self._tenant_times(), ("spread",)).quantiles())
        asked = row["published"] - row["redriven"] + row["duplicates"]
        row["duplicate_ratio"] = ratio(row["duplicates"], asked)
        row["redelivery_ratio"] = ratio(row["redelivered"], row["delivered"])
        row["error_ratio"] = ratio(row["errors"], row["outcomes"])
        return in_utc(row | self._levels())

    @cached_property
    def _end(self) -> int | None:
        """The last moment of the window of which something is known: nothing is after the last entry of all."""
        known = [one.times[1] for one in self._days if one.times is not None]
        return min(max(known), self._window.bounds[1] - 1) if known else None

    def _levels(self) -> Row:
        """Return how many messages are in each state now, or at the end of the window, by all that is archived.

        Delayed messages that became due after the last entry wait by now: it is known when their delays end.
        """
        now = max(self._end or 0, int(datetime.now(UTC).timestamp() * SECOND))
        row: Row = {"minute": min(now, self._window.bounds[1] - 1) // MINUTE * MINUTE}
        _add_levels([row], _by(self._tables["levels"], MINUTE), "minute")
        return {name: row[name] for name in (*STATES, "backlog")}

    def _tenant_times(self) -> list[Times]:
        return [*(one.tenant_times for one in self._inside), self._between.figures.times]

    def _over_time(self, unit: str, size: int) -> list[Row]:
        """Return a row for each minute or second in which something happened, or delayed messages became due."""
        buckets, levels = _by(self._tables["buckets"], size), _by(self._tables["levels"], size)
        quantiles = {
            bucket: _spreads(SPREADS, rows) for bucket, rows in self._quantiles(size).groupby("bucket", sort=False)
        }
        nothing = _spreads(SPREADS, None)
        rows = []
        columns = [*COUNTED, "outcomes", "errors", "removed"]
        counts = buckets[buckets["bucket"] >= 0].groupby("bucket", sort=True)[columns].sum()
        places = np.union1d(counts.index.to_numpy(), self._changes_inside(levels, size))
        for one in counts.reindex(pd.Index(places, name="bucket"), fill_value=0).reset_index().to_dict("records"):
            bucket = one.pop("bucket")
            rows.append({unit: bucket, **one, **quantiles.get(bucket, nothing)})
        _add_levels(rows, levels, unit)
        return [in_utc(one) for one in rows]

    def _changes_inside(self, levels: Frame, size: int) -> Array:
        """Return the buckets of the window in which levels change, also without an entry: when a delay is over."""
        summed = levels.groupby("bucket", sort=True).sum()
        changed: Array = summed.index[(summed != 0).any(axis=1)].to_numpy().astype(np.int64)
        since, until = self._window.bounds
        # Of a bucket that the window cuts nobody knows on which side of the cut the change was.
        is_inside = (changed >= max(0, since)) & (changed + size <= until)
        return changed[is_inside & (changed <= (-1 if self._end is None else self._end))]

    def _quantiles(self, size: int) -> Frame:
        """Return the quantiles of each bucket: as they were kept, unless several parts have times in it."""
        between = self._between.figures.times
        buckets = pd.concat(
            [_by(one.quantiles, size)["bucket"].drop_duplicates() for one in self._inside]
            + [_by(between.groups, size)["bucket"].drop_duplicates()],
            ignore_index=True,
        )
        shared = set(buckets[buckets.duplicated()])
        found = []
        times = [_of_buckets(between, size)]
        for one in self._inside:
            own = one.quantiles
            is_shared = _by(own, size)["bucket"].isin(shared)
            if one.figures.size != size:  # its own are of smaller buckets
                is_shared |= True
            found.append(own[~is_shared])
            if is_shared.any():
                details = _of_buckets(one.details().times, size)
                wanted = details.groups["bucket"].isin(set(_by(own, size)["bucket"][is_shared])).to_numpy()
                times.append(details.where(wanted))
        found.append(Times.merge(times, ("bucket", "spread")).quantiles())
        return pd.concat(found, ignore_index=True)

    def _tenants(self) -> list[Row]:
        """Return what each tenant published and got."""
        tenants = self._tables["tenants"].copy()
        # What an operator removed from the delayed messages is already subtracted, and is among those not due.
        not_due = (tenants.pop("not_due") - tenants.pop("undelayed")).clip(lower=0)
        tenants["demand"] -= not_due
        has_part = tenants[[*COUNTED]].sum(axis=1) + tenants["demand"].clip(lower=0) > 0
        tenants = tenants[has_part].sort_values(["delivered", "tenant"], ascending=[False, True])
        times = Times.merge(self._tenant_times(), ("tenant", "spread")).quantiles()
        spreads = dict(list(times[times["spread"].isin(("waiting", "handler"))].groupby("tenant", sort=False)))
        delivered = int(tenants["delivered"].sum())
        rows = []
        for one in tenants.to_dict("records"):
            found = _spreads(("waiting", "handler"), spreads.get(one["tenant"]))
            rows.append(in_utc({**one, **found, "share": ratio(one["delivered"], delivered)}))
        return rows

    def _tenants_over_time(self, tenants: list[Row], unit: str, size: int) -> list[Row]:
        """Return a row for each minute or second, and each of the tenants with the most deliveries."""
        if len(tenants) < 2:
            return []
        busiest = [one["tenant"] or "" for one in tenants[:_MOST_TENANTS]]
        tables = [self._between.figures.tables, *(one.details().tables for one in self._inside)]
        rows = pd.concat([one["tenant_buckets"] for one in tables], ignore_index=True)
        rows = _by(rows[rows["tenant"].isin(busiest)], size)
        summed = rows.groupby(["bucket", "tenant"], sort=True).sum().reset_index()
        return [in_utc({unit: one.pop("bucket"), **one}) for one in summed.to_dict("records")]

    def _failures(self) -> list[Row]:
        rows = self._tables["failures"].sort_values(["total", "error_type"], ascending=[False, True])
        return [in_utc(one) for one in rows.to_dict("records")]

    def _dead_letters(self) -> list[Row]:
        rows = self._tables["letters"].sort_values("serial", kind="stable").assign(tenants=1)
        ways = {"letters": "sum", "tenants": "sum", "first_at": "min", "last_at": "max", "newest_id": "last"}
        letters = rows.groupby(["error_type", "reason"], sort=True).agg(ways).reset_index()
        letters = letters.sort_values(["letters", "error_type", "reason"], ascending=[False, True, True])
        return [in_utc(one) for one in letters.to_dict("records")]

    # -- the verdict

    def _conservation(self, journals: list[JournalRange]) -> Row:
        """Count every message by its last event, and compare with what the queue has."""
        accounts = self._tables["accounts"]
        newest = {one.journal or "" for one in newest_of(journals)}
        is_open = ~accounts["state"].isin(LEAVING)
        is_newest = accounts["journal"].isin(newest)

        def messages(rows: Any) -> int:
            return int(accounts["messages"][rows].sum())

        return balance(
            entered=int(accounts["entered"].sum()),
            left={name: messages(accounts["state"] == name) for name in LEAVING},
            open_messages=messages(is_open & is_newest),
            flushed=messages(is_open & ~is_newest),
            unseen=int((accounts["messages"] - accounts["entered"]).sum()),
            odd=int(accounts["odd"].sum()),
            purged=int(self._tables["purged"]["messages"].sum()),
            foreign=self._foreign(),
            repeated=sum(one.repeated for one in journals),
            missing=sum(one["count"] for journal in journals for one in journal.missing),
            held=held_at_the_end(self._archived.held, journals),
            absent_ids=lambda: self._absent(newest),
        )

    def _foreign(self) -> int:
        """Return how many messages of the queue are not in the journal."""
        contents = self._archived.contents
        known_ids = pa.array(self._between.ids["id"], pa.string())
        unknown = contents.filter(pc.invert(pc.is_in(contents, value_set=known_ids)))
        without_id = int(unknown.null_count)
        candidates = unknown.drop_null().unique()
        if len(candidates):  # they may have left, and be in the queue all the same
            hashes = hash_ids(candidates)
            known = np.concatenate([np.empty(0, np.uint64), *(one.whole() for one in self._days)])
            return int((~np.isin(hashes, known)).sum()) + without_id
        return without_id

    def _absent(self, newest: set[str]) -> list[str]:
        """Return ids of messages that should be in the queue, but were not found there."""
        messages = self._between.ids
        open_ids = messages[~messages["state"].isin(LEAVING) & messages["journal"].isin(newest)]["id"]
        found = set(self._archived.contents.to_pylist())
        return sorted(one for one in open_ids if one not in found)[:EXAMPLES]


def _is_short(summary: Row) -> bool:
    first, last = summary["first_at"], summary["last_at"]
    return first is not None and (last - first).total_seconds() * SECOND < SHORT


def _by(rows: Frame, size: int) -> Frame:
    """Return rows with larger buckets."""
    bucket = rows["bucket"]
    return rows.assign(bucket=bucket.where(bucket < 0, bucket // size * size))


def _of_buckets(times: Times, size: int) -> Times:
    return replace(times, groups=_by(times.groups, size))


def _spreads(names: Sequence[str], quantiles: Frame | None) -> Row:
    """Return the columns for the quantiles of some times."""
    row: Row = {f"{name}_p{percent}": None for name in names for percent in PERCENTS}
    for one in () if quantiles is None else quantiles.to_dict("records"):
        row |= {f"{one['spread']}_p{percent}": one[f"p{percent}"] for percent in PERCENTS}
    return row


def _add_levels(rows: list[Row], changes: Frame, unit: str) -> None:
    """Add how many messages were in each state at the end of each minute or second, by the journal."""
    summed = changes.groupby("bucket", sort=True).sum().cumsum()
    places = np.searchsorted(summed.index.to_numpy(), [one[unit] for one in rows], side="right") - 1
    levels = summed.to_dict("records")
    for one, place in zip(rows, places, strict=True):
        found = levels[place] if place >= 0 else dict.fromkeys(STATES, 0)
        one |= {state: found[state] for state in STATES} | {"backlog": sum(found[state] for state in STATES)}


def _add_error_texts(tables: dict[str, list[Row]], texts: ErrorTexts) -> None:
    newest: dict[str, tuple[int, str]] = {}
    for (error_type, _), found in texts.items():
        newest[error_type] = max(newest.get(error_type, found), found)
    for one in tables["dead_letters"]:
        one["error"] = texts.get((one["error_type"] or "", one["reason"] or ""), (0, None))[1]
    for one in tables["failures"]:
        one["error"] = newest.get(one["error_type"] or "", (0, None))[1]


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def jain(served: list[int]) -> float | None:
    """Return Jain's index: 1 if all are served equally often, 1/n if one of n gets everything."""
    return sum(served) ** 2 / (len(served) * sum(one * one for one in served)) if any(served) else None
