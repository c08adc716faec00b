"""Counts the messages of archived days in tasks: each task its files, then what is left of each day together."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from redis_message_queue.spark.job_options import Window
from redis_message_queue.spark.jobs.archive_tables import ArchiveTable, DataFile, grouped
from redis_message_queue.spark.jobs.conservation import join_runs, runs_of, serial_runs
from redis_message_queue.spark.jobs.figures import (
    COLUMNS,
    MINUTE,
    NO_ENTRIES,
    Counted,
    Figures,
    count_messages,
    empty,
    from_ipc,
    hash_ids,
    pack,
    to_ipc,
    unpack,
)
from redis_message_queue.spark.jobs.times import Array, Frame, Times
from redis_message_queue.spark.table_reader import read_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_A_TASK = 500_000
_LEAST_ROWS_A_TASK = 50_000
# Fewer rows are counted by the driver: starting tasks would take longer.
LOCAL_ROWS = 50_000
_ROWS_A_JOB = 10_000_000  # the results of a job have to fit into the driver
_SMALL = ("buckets", "levels", "tenants", "failures", "letters", "accounts", "purged")
_LARGE = ("tenant_buckets",)


@dataclass(frozen=True)
class Day:
    """The figures of the entries that were written on a date, and the entries of messages that are not whole."""

    figures: Figures  # without the details
    tenant_times: Times  # by tenant and spread
    quantiles: Frame  # by bucket and spread
    runs: Frame  # of serials
    rest: pa.Table
    details: Callable[[], Figures]  # tenants over time, and times by bucket, tenant and spread
    whole: Callable[[], Array]  # the hashes of the ids of its whole messages

    @classmethod
    def of(cls, parts: Sequence[Counted], runs: Frame, rest: pa.Table) -> "Day":
        figures = Figures.add([one.figures for one in parts])
        nothing = empty()
        tables = {**nothing.tables, **{name: figures.tables[name] for name in _SMALL}}
        whole = np.sort(np.concatenate([one.whole for one in parts]))
        return cls(
            Figures(figures.size, tables, nothing.times),
            Times.merge([figures.times], ("tenant", "spread")),
            Times.merge([figures.times], ("bucket", "spread")).quantiles(),
            runs,
            rest,
            lambda: figures,
            lambda: whole,
        )

    @cached_property
    def times(self) -> tuple[int, int] | None:
        """Of its first and last entry in microseconds, if any has one."""
        least, greatest = self.runs["least_at"].min(), self.runs["greatest_at"].max()
        return None if pd.isna(least) else (int(least), int(greatest))

    def part_of(self, window: Window) -> Figures | None:
        """Return the figures that count for a window, or None if it cuts the day."""
        (since, until), times = window.bounds, self.times
        if times is None or (times[0] >= since and times[1] < until):
            return self.figures
        if times[1] < since:
            return self.figures.before()
        return self.figures.after() if times[0] // MINUTE * MINUTE >= until else None

    def to_bytes(self) -> dict[str, bytes]:
        """Return the day, its details and its whole messages."""
        details, size = self.details(), {"size": self.figures.size}
        day = {
            **{name: self.figures.tables[name] for name in _SMALL},
            **self.tenant_times.tables(),
            "quantiles": self.quantiles,
            "runs": self.runs,
            "rest": self.rest,
        }
        large = {**{name: details.tables[name] for name in _LARGE}, **details.times.tables()}
        return {"day": pack(size, day), "details": pack(size, large), "ids": self.whole().tobytes()}

    @classmethod
    def from_bytes(cls, content: bytes, load: Callable[[str], bytes]) -> "Day":
        """Return a day from its own bytes, and a function that gives the others."""

        def details() -> Figures:
            told, tables = unpack(load("details"))
            return _figures(told["size"], tables, _LARGE, _times(tables))

        told, tables = unpack(content)
        return cls(
            _figures(told["size"], tables, _SMALL, empty().times),
            _times(tables),
            tables["quantiles"].to_pandas(),
            runs_of(tables["runs"]),
            tables["rest"],
            details,
            lambda: np.frombuffer(load("ids"), np.uint64),
        )


def _figures(size: int, tables: Mapping[str, pa.Table], names: Sequence[str], times: Times) -> Figures:
    return Figures(size, {**empty().tables, **{name: tables[name].to_pandas() for name in names}}, times)


def _times(tables: Mapping[str, pa.Table]) -> Times:
    return Times.from_tables(tables["groups"].to_pandas(), tables["values"].to_pandas())


class DayCounter:
    """Counts days of one queue."""

    def __init__(self, spark: "SparkSession", table: ArchiveTable, window: Window) -> None:
        self._spark, self._table, self._window = spark, table, window

    def count(
        self, days: Mapping[str, Sequence[DataFile]], never_whole: Mapping[str, Array], windowed: frozenset[str]
    ) -> Iterator[tuple[str, Day]]:
        """Return each day. In ``never_whole`` are hashes of ids, and in ``windowed`` days that the window cuts."""
        for dates in _jobs(days):
            chosen = {date: days[date] for date in dates}
            results: dict[str, list[_Result]] = defaultdict(list)
            for one in self._run(chosen, never_whole, windowed):
                results[one.date].append(one)
            for date in dates:
                yield date, _day(results.pop(date))

    def _run(
        self, days: Mapping[str, Sequence[DataFile]], never_whole: Mapping[str, Array], windowed: frozenset[str]
    ) -> Iterable["_Result"]:
        rows = sum(one.rows for files in days.values() for one in files)
        is_local = rows <= LOCAL_ROWS
        cores = 1 if is_local else self._spark.sparkContext.defaultParallelism
        size = 1.1 * min(ROWS_A_TASK, max(_LEAST_ROWS_A_TASK, -(-rows // cores)))
        groups = {date: list(grouped(files, size)) for date, files in days.items()}
        slices = [(date, len(own), files) for date, own in groups.items() for files in own]
        read, window = self._table.reader(COLUMNS), self._window
        chosen = {date: (window if date in windowed else Window(), never_whole.get(date)) for date in days}

        def first(wanted: tuple[str, int, list[DataFile]]) -> Iterator[_Result]:
            date, parts, files = wanted
            return _count_files(date, parts, read(files), *chosen[date])

        def second(found: Iterable[_Result]) -> Iterator[_Result]:
            return _count_rests(found, chosen)

        if is_local:
            return second(result for one in slices for result in first(one))
        counted = read_in_tasks(self._spark, slices, lambda one: _batches(first(one)), _RESULT)
        if any(len(own) > 1 for own in groups.values()):
            counted = counted.repartition(cores, "date", "bucket").mapInArrow(
                lambda batches: _batches(second(_results(batches))), _RESULT
            )
        return [_Result(**row.asDict()) for row in counted.collect()]


def _jobs(days: Mapping[str, Sequence[DataFile]]) -> Iterator[list[str]]:
    """Put days together, so that a job has enough to do."""
    dates: list[str] = []
    rows = 0
    for date in sorted(days):
        own = sum(one.rows for one in days[date])
        if dates and rows + own > _ROWS_A_JOB:
            yield dates
            dates, rows = [], 0
        dates.append(date)
        rows += own
    if dates:
        yield dates


# What a task returns: figures of whole messages, or entries of others.
_RESULT = "date string, bucket int, figures binary, whole binary, runs binary, rest binary"


@dataclass(frozen=True)
class _Result:
    date: str
    bucket: int
    figures: bytes | None = None
    whole: bytes = b""
    runs: bytes | None = None
    rest: bytes | None = None

    @classmethod
    def of(cls, date: str, bucket: int, counted: Counted, runs: Frame | None = None) -> "_Result":
        packed = None if runs is None else pack({}, {"runs": runs})
        rest = to_ipc(counted.rest) if counted.rest.num_rows else None
        return cls(date, bucket, counted.figures.to_bytes(), counted.whole.tobytes(), packed, rest)

    def counted(self) -> Counted:
        assert self.figures is not None
        hashes = np.frombuffer(self.whole, np.uint64)
        return Counted(Figures.from_bytes(self.figures), pa.table({}), hashes, pd.DataFrame())


def _batches(results: Iterable[_Result]) -> Iterator[pa.RecordBatch]:
    names = ("date", "bucket", "figures", "whole", "runs", "rest")
    kinds = (pa.string(), pa.int32(), *[pa.binary()] * 4)
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    for one in results:
        yield pa.RecordBatch.from_pylist([{name: getattr(one, name) for name in names}], schema)


def _results(batches: Iterable[pa.RecordBatch]) -> Iterator[_Result]:
    for batch in batches:
        for row in batch.to_pylist():
            yield _Result(**row)


def _count_files(
    date: str, parts: int, entries: pa.Table, window: Window, never_whole: Array | None
) -> Iterator[_Result]:
    """Count the messages that are whole in the files of a task, and split the rest by message."""
    counted = count_messages(entries, window, only_whole=True, never_whole=never_whole)
    if parts == 1:
        yield _Result.of(date, 0, counted, serial_runs(entries))
        return
    nothing_left = Counted(counted.figures, counted.rest.slice(0, 0), counted.whole, counted.ids)
    yield _Result.of(date, -1, nothing_left, serial_runs(entries))
    buckets = hash_ids(counted.rest.column("id").combine_chunks()) % np.uint64(parts)
    for bucket in range(parts):
        own = counted.rest.filter(pa.array(buckets == bucket))
        if own.num_rows:
            yield _Result(date, bucket, rest=to_ipc(own))


def _count_rests(found: Iterable[_Result], chosen: Mapping[str, tuple[Window, Array | None]]) -> Iterator[_Result]:
    """Count the messages that are whole in what the tasks of a day have left together."""
    rests: dict[tuple[str, int], list[pa.Table]] = defaultdict(list)
    for one in found:
        if one.figures is not None:
            yield one
        elif one.rest is not None:
            rests[one.date, one.bucket].append(from_ipc(one.rest))
    for (date, bucket), tables in rests.items():
        window, never_whole = chosen[date]
        entries = pa.concat_tables(tables)
        yield _Result.of(date, bucket, count_messages(entries, window, only_whole=True, never_whole=never_whole))


def _day(results: Sequence[_Result]) -> Day:
    runs = [runs_of(unpack(one.runs)[1]["runs"]) for one in results if one.runs is not None]
    rests = [from_ipc(one.rest) for one in results if one.rest is not None]
    rest = pa.concat_tables(rests) if rests else NO_ENTRIES
    return Day.of([one.counted() for one in results], join_runs(runs), rest)


# -- messages in several days


def ids_of(rest: pa.Table) -> Array:
    """Return the hashes of the ids in the rest of days."""
    ids = rest.column("id").combine_chunks().unique() if rest.num_rows else pa.array([], pa.string())
    return hash_ids(ids) if len(ids) else np.empty(0, np.uint64)


def repeated(fresh: Sequence[Array], known: Iterable[Array]) -> Array:
    """Return the hashes that are in two of the fresh lists, or in a fresh one and a known one."""
    every, count = np.unique(np.concatenate(fresh), return_counts=True) if fresh else (np.empty(0, np.uint64), [])
    found: Any = [every[np.asarray(count) > 1]]
    found += [one[np.isin(one, every)] for one in known]
    return np.unique(np.concatenate(found))
