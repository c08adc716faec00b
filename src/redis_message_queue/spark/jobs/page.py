"""Renders a report, or an overview of several, as one HTML page from the templates beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from redis_message_queue.spark.job_options import Window
from redis_message_queue.spark.jobs.plots import (
    SIZES,
    Line,
    Series,
    Size,
    amount,
    bar,
    bucket_size,
    draw,
    duration,
    floor_time,
    moment,
    percent,
)
from redis_message_queue.spark.jobs.report_rows import Row
from redis_message_queue.spark.jobs.statistics import ReportStatistics

_MOST_ROWS = 50  # of a table on the page; the files beside it have all
_UNITS = {"minute": timedelta(minutes=1), "second": timedelta(seconds=1)}
_ACCOUNTS = {
    "flushed": "Lost when the data of the queue was deleted from Redis",
    "foreign": "In the queue, but not in the journal",
    "entered": "Entered: published or redriven",
    "entered_unseen": "Published before the journal began, or in a gap",
    "acked": "Acknowledged",
    "handed_off": "Handed off to other queues",
    "failed": "Failed for good",
    "dead": "Dead-lettered",
    "expired": "Expired unread",
    "dropped": "Dropped to make room",
    "discarded": "Discarded by their handlers",
    "cancelled": "Cancelled",
    "purged": "Purged or deleted by an operator",
    "remaining": "Still in the queue, by the journal",
}
# Color and width: where two quantiles are equal, the narrower line is seen on the wider one.
_QUANTILES = ((50, 2, 1.6), (95, 3, 2.2), (99, 4, 6.0))


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot in all sizes, without any if there is nothing to draw."""

    series: Series
    drawings: Sequence[tuple[str, Markup, str]]  # the name of its size, the drawing and its caption

    def rows(self) -> list[tuple[datetime, list[str]]]:
        """Return its values as a table, the newest first, without the times at which there is nothing."""
        series, rows = self.series, []
        for place, time in enumerate(series.times):
            values = [line.values[place] for line in series.lines]
            if any(values):
                rows.append((time, [series.shown(one) for one in values]))
        return rows[::-1]


def render_page(statistics: ReportStatistics, made_at: datetime) -> str:
    """Return the page of one queue."""
    tables = statistics.tables
    return (
        _environment()
        .get_template("report.html")
        .render(
            queue=statistics.queue,
            summary=statistics.summary,
            tables=tables,
            tiles=_tiles(statistics.summary),
            plots=list(_plots(statistics)),
            accounts=_ACCOUNTS,
            made_at=made_at,
        )
    )


def render_overview(rows: Sequence[Row], window: Window, made_at: datetime) -> str:
    """Return the page that compares queues."""
    return _environment().get_template("overview.html").render(rows=rows, window=window, made_at=made_at)


def _environment() -> Environment:
    page = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page.filters |= {"amount": amount, "duration": duration, "moment": moment, "percent": percent}
    page.filters["bar"] = lambda share: Markup(bar(share or 0))
    page.globals["most_rows"] = _MOST_ROWS
    return page


def _tiles(summary: Row) -> list[tuple[str, str, str]]:
    """Return name, value and note of the figures at the top."""
    first, last = summary["first_at"], summary["last_at"]
    minutes = max(1.0, (last - first).total_seconds() / 60) if first else 1.0

    def tail(name: str) -> str:
        return f"95 %: {duration(summary[f'{name}_p95'])}, 99 %: {duration(summary[f'{name}_p99'])}"

    prefetch = duration(summary["prefetch_p50"])
    return [
        ("Published", amount(summary["published"]), f"{amount(summary['published'] / minutes)} a minute"),
        ("Handled", amount(summary["acked"]), f"{amount(summary['acked'] / minutes)} a minute"),
        ("Error rate", percent(summary["error_ratio"]), f"{amount(summary['errors'])} attempts failed"),
        ("Dead-lettered", amount(summary["dead"]), f"{amount(summary['redriven'])} redriven"),
        ("Waiting, median", duration(summary["waiting_p50"]), tail("waiting")),
        ("Handler, median", duration(summary["handler_p50"]), tail("handler")),
        ("Claim to outcome, median", duration(summary["processing_p50"]), f"in the prefetch buffer: {prefetch}"),
        ("Failed", amount(summary["failed"]), f"{amount(summary['retried'])} retries"),
        ("Duplicates", percent(summary["duplicate_ratio"]), f"{amount(summary['duplicates'])} suppressed"),
        ("Redelivered", percent(summary["redelivery_ratio"]), f"{amount(summary['reclaimed'])} from expired leases"),
    ]


# -- plots


def _plots(statistics: ReportStatistics) -> Iterator[Plot]:
    tables = statistics.tables
    unit = "second" if tables.get("seconds") else "minute"
    rows = tables[f"{unit}s"]
    if not rows:
        return
    by_tenant = tables["tenants_over_time"]
    tenants = [one["tenant"] for one in tables["tenants"] if any(row["tenant"] == one["tenant"] for row in by_tenant)]
    sizes = [_Buckets(rows, unit, size, statistics, by_tenant, tenants) for size in SIZES]
    for drawn in zip(*(one.plots() for one in sizes), strict=True):
        both = zip(drawn, SIZES, strict=True)
        drawings = [(size.name, Markup(draw(one, size)), one.caption) for one, size in both]
        yield Plot(drawn[0], [] if drawn[0].is_empty else drawings)


class _Buckets:
    """The rows of a report in as many buckets of time as a drawing has room for."""

    def __init__(
        self,
        rows: Sequence[Row],
        unit: str,
        size: Size,
        statistics: ReportStatistics,
        by_tenant: Sequence[Row] = (),
        tenants: Sequence[str | None] = (),
    ) -> None:
        self._unit = unit
        length = _UNITS[unit]
        self._count = bucket_size(rows[0][unit], rows[-1][unit], length, size.most_buckets)
        self._step = self._count * length
        first = floor_time(rows[0][unit], self._step)
        self._times = [first + self._step * place for place in range((rows[-1][unit] - first) // self._step + 1)]
        self._rows = self._in_buckets(rows)
        self._tenants = {one: self._in_buckets([row for row in by_tenant if row["tenant"] == one]) for one in tenants}
        self._gaps = list(_gaps(statistics, self._times[0], self._times[-1] + self._step))
        self._in_gap = [
            any(start <= time and time + self._step <= end for start, end in self._gaps) for time in self._times
        ]
        self._known = [self._known_units(time, rows[0][unit], rows[-1][unit] + length) for time in self._times]

    def _known_units(self, time: datetime, first: datetime, last: datetime) -> float:
        """Return of how many minutes or seconds of a bucket there are entries: it may begin earlier, or have a gap."""
        start, end = max(time, first), min(time + self._step, last)
        missing = sum((max(timedelta(), min(end, stop) - max(start, begin)) for begin, stop in self._gaps), timedelta())
        return max(1.0, (end - start - missing) / _UNITS[self._unit])

    def _in_buckets(self, rows: Sequence[Row]) -> list[list[Row]]:
        buckets: list[list[Row]] = [[] for _ in self._times]
        for one in rows:
            buckets[(one[self._unit] - self._times[0]) // self._step].append(one)
        return buckets

    def plots(self) -> Iterator[Series]:
        several = self._count > 1
        each = f" of each {duration(self._step.total_seconds())}"
        average, worst = (f", the average{each}", f" The worst {self._unit}{each}.") if several else ("", "")
        a_unit = f"a {self._unit}{average}"
        rate = "average" if several else "count"  # the axis of whole numbers has no fractions
        yield self._plot(
            "Throughput",
            [Line("Published", 1, self._rate("published"), 5.0), Line("Handled", 2, self._rate("acked"))],
            f"Messages {a_unit}.",
            "Nothing was published or handled.",
            rate,
        )
        yield self._plot(
            "Failed attempts",
            [
                Line("Retried", 3, self._rate("retried")),
                Line("Failed", 4, self._rate("failed")),
                Line("Dead-lettered", 5, self._rate("dead")),
            ],
            f"Messages {a_unit}.",
            "No attempt has failed.",
            rate,
        )
        yield self._plot(
            "Error rate",
            [Line("Failed of all attempts", 4, self._error_rate())],
            "Attempts that failed, among all that ended.",
            "No attempt has failed.",
            "share",
        )
        yield self._plot(
            "In the queue",
            [
                Line("Waiting", 1, self._level("waiting")),
                Line("In flight", 2, self._level("in_flight")),
                Line("Delayed", 3, self._level("delayed")),
            ],
            f"How many messages there were at the end of each {duration(self._step.total_seconds())}.",
            "The queue was empty.",
        )
        yield self._plot(
            "Waiting time",
            self._quantiles("waiting"),
            f"From deliverable to claimed.{worst}",
            "No message was claimed.",
            "seconds",
        )
        yield self._plot(
            "Handler time",
            self._quantiles("handler"),
            f"How long handlers ran.{worst}",
            "No handler has ended.",
            "seconds",
        )
        if self._tenants:
            lines = [
                Line(name or "no tenant", place % 6 + 1, self._rate("acked", rows))
                for place, (name, rows) in enumerate(self._tenants.items())
            ]
            caption = f"Messages handled {a_unit}, of the tenants with the most deliveries."
            yield self._plot("Tenants", lines, caption, "Nothing was handled.", rate)

    def _plot(self, title: str, lines: list[Line], caption: str, nothing: str, unit: str = "count") -> Series:
        return Series(title, caption, unit, self._times, self._step, lines, nothing, self._gaps)

    def _rate(self, name: str, rows: list[list[Row]] | None = None) -> list[float | None]:
        """Return the average of each bucket: 0 where nothing happened, None where entries are missing."""
        found: list[float | None] = []
        buckets = self._rows if rows is None else rows
        for bucket, in_gap, units in zip(buckets, self._in_gap, self._known, strict=True):
            found.append(None if in_gap and not bucket else sum(one[name] for one in bucket) / units)
        return found

    def _error_rate(self) -> list[float | None]:
        found: list[float | None] = []
        for bucket in self._rows:
            outcomes = sum(one["outcomes"] for one in bucket)
            found.append(sum(one["errors"] for one in bucket) / outcomes if outcomes else None)
        return found

    def _quantiles(self, name: str) -> list[Line]:
        return [Line(f"{one} %", color, self._worst(f"{name}_p{one}"), width) for one, color, width in _QUANTILES]

    def _worst(self, name: str) -> list[float | None]:
        return [max((one[name] for one in bucket if one[name] is not None), default=None) for bucket in self._rows]

    def _level(self, name: str) -> list[float | None]:
        """Return the last known number in each bucket. It is below 0 if the journal began later than the queue."""
        found: list[float | None] = []
        known = 0
        for bucket, in_gap in zip(self._rows, self._in_gap, strict=True):
            known = max(0, bucket[-1][name]) if bucket else known
            found.append(None if in_gap and not bucket else known)
        return found


def _gaps(statistics: ReportStatistics, first: datetime, last: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Return the times of which entries are missing, as far as the plots show them."""
    for one in statistics.tables["missing"]:
        start, end = one["after_at"] or first, one["before_at"] or last
        if end > first and start < last:
            yield max(first, start), min(last, end)
