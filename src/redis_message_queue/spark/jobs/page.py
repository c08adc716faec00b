"""Renders a report, or an overview of several, as one HTML page from the templates beside it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from redis_message_queue.spark.job_options import Window
from redis_message_queue.spark.jobs.plots import (
    SIZES,
    Line,
    Series,
    amount,
    bar,
    draw,
    duration,
    moment,
    percent,
)
from redis_message_queue.spark.jobs.statistics import UNITS, ReportStatistics
from redis_message_queue.spark.jobs.verdict import Row

_MOST_ROWS = 50  # of a table on the page; the files beside it have all
_ACCOUNTS = {
    "lost": "Lost when the data of the queue was deleted from Redis",
    "foreign": "In the queue, but not in the journal",
    "entered": "Entered: published or redriven",
    "entered_unseen": "Entered before that, before the journal began, or in a gap",
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


def render_page(statistics: ReportStatistics, made_at: datetime, zone: tzinfo | None = UTC) -> str:
    """Return the page of one queue, with times in a zone: without one, in that of this machine."""
    local = ReportStatistics(statistics.queue, *_in_zone((statistics.summary, statistics.tables), zone))
    return (
        _environment()
        .get_template("report.html")
        .render(
            queue=local.queue,
            summary=local.summary,
            tables=local.tables,
            tiles=_tiles(local.summary),
            periods=_periods(local.summary),
            plots=list(_plots(local)),
            accounts=_ACCOUNTS,
            made_at=made_at.astimezone(zone),
        )
    )


def render_overview(rows: Sequence[Row], window: Window, made_at: datetime, zone: tzinfo | None = UTC) -> str:
    """Return the page that compares queues."""
    shown = {"rows": rows, "window": {"since": window.since, "until": window.until}, "made_at": made_at}
    return _environment().get_template("overview.html").render(**_in_zone(shown, zone))


def _in_zone(value: Any, zone: tzinfo | None) -> Any:
    """Return rows with all times in a zone."""
    if isinstance(value, datetime):
        return value.astimezone(zone)
    if isinstance(value, dict):
        return {name: _in_zone(one, zone) for name, one in value.items()}
    return [_in_zone(one, zone) for one in value] if isinstance(value, list | tuple) else value


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
        ("Backlog, peak", amount(summary["peak"]), f"{amount(max(0, summary['backlog']))} at the end"),
        ("Redelivered", percent(summary["redelivery_ratio"]), f"{amount(summary['reclaimed'])} from expired leases"),
    ]


def _periods(summary: Row) -> list[tuple[str, str, str]]:
    """Return name, value and value of the period before, of the figures that are compared."""
    before = summary["previous"]
    if before is None:
        return []
    shown = {
        "Published": ("published", amount),
        "Handled": ("acked", amount),
        "Error rate": ("error_ratio", percent),
        "Dead-lettered": ("dead", amount),
        "Waiting, median": ("waiting_p50", duration),
        "Waiting, 95 %": ("waiting_p95", duration),
        "Handler, median": ("handler_p50", duration),
        "Handler, 95 %": ("handler_p95", duration),
    }
    return [(title, show(summary[name]), show(before[name])) for title, (name, show) in shown.items()]


# -- plots


def _plots(statistics: ReportStatistics) -> Iterator[Plot]:
    rows = statistics.tables["over_time"]
    if not rows:
        return
    for series in _Buckets(statistics, rows).plots():
        drawings = [(size.name, Markup(draw(series, size)), series.caption) for size in SIZES]
        yield Plot(series, [] if series.is_empty else drawings)


class _Buckets:
    """The rows of a report as lines over all buckets of time, also over those in which nothing happened."""

    def __init__(self, statistics: ReportStatistics, rows: Sequence[Row]) -> None:
        self._unit = "second" if statistics.summary["unit"] == "second" else "minute"  # of rates
        self._step = timedelta(seconds=rows[0]["seconds"])
        first, last = rows[0]["start"], rows[-1]["start"]
        self._times = [first + self._step * place for place in range((last - first) // self._step + 1)]
        self._rows = _by_time(rows)
        tenants = statistics.tables["tenants_over_time"]
        names = [one["tenant"] for one in statistics.tables["tenants"]]
        self._tenants = {
            name: _by_time(own) for name in names if (own := [one for one in tenants if one["tenant"] == name])
        }
        self._gaps = list(_gaps(statistics, first, last + self._step))
        began, ended = statistics.summary["first_at"], statistics.summary["until"] or statistics.summary["last_at"]
        self._known = [self._known_units(time, began or first, ended or last) for time in self._times]

    def _known_units(self, time: datetime, first: datetime, last: datetime) -> float:
        """Return of how many minutes of a bucket there are entries: the first and the last may have them in a part.

        It is 0 for the last one if that has less than a minute, which would be drawn as a fall.
        """
        start, end = max(time, first), min(time + self._step, last)
        missing = sum((max(timedelta(), min(end, stop) - max(start, begin)) for begin, stop in self._gaps), timedelta())
        unit = min(UNITS[self._unit], self._step)
        if len(self._times) > 1 and time == self._times[-1] and timedelta() <= end - start < unit:
            return 0.0
        return max(1.0, (end - start - missing) / unit) if end > start else 1.0

    def plots(self) -> Iterator[Series]:
        several = self._step > UNITS[self._unit]
        each = duration(self._step.total_seconds())
        a_unit = f"a {self._unit}{f', the average of each {each}' if several else ''}"
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
                Line("Peak of all", 5, self._level("peak", "backlog"), 5.0),
                Line("Waiting", 1, self._level("waiting")),
                Line("In flight", 2, self._level("in_flight")),
                Line("Delayed", 3, self._level("delayed")),
            ],
            f"How many messages there were at the end of each {each}, and at most during it.",
            "The queue was empty.",
        )
        for title, name, caption, nothing in (
            ("Waiting time", "waiting", "From deliverable to claimed.", "No message was claimed."),
            ("Handler time", "handler", "How long handlers ran.", "No handler has ended."),
        ):
            yield self._plot(title, self._quantiles(name), f"{caption} Of each {each}.", nothing, "seconds")
        if self._tenants:
            lines = [
                Line(name or "no tenant", place % 6 + 1, self._rate("acked", rows))
                for place, (name, rows) in enumerate(self._tenants.items())
            ]
            caption = f"Messages handled {a_unit}, of the tenants with the most deliveries."
            yield self._plot("Tenants", lines, caption, "Nothing was handled.", rate)

    def _plot(self, title: str, lines: list[Line], caption: str, nothing: str, unit: str = "count") -> Series:
        return Series(title, caption, unit, self._times, self._step, lines, nothing, self._gaps)

    def _is_in_gap(self, time: datetime) -> bool:
        return any(start <= time and time + self._step <= end for start, end in self._gaps)

    def _rate(self, name: str, rows: Mapping[datetime, Row] | None = None) -> list[float | None]:
        """Return the average of each bucket: 0 where nothing happened, None where too few entries are known."""
        found: list[float | None] = []
        for time, units in zip(self._times, self._known, strict=True):
            row = (self._rows if rows is None else rows).get(time)
            is_known = units and not (row is None and self._is_in_gap(time))
            found.append((row[name] / units if row else 0) if is_known else None)
        return found

    def _error_rate(self) -> list[float | None]:
        rows = [self._rows.get(time) for time in self._times]
        return [row["errors"] / row["outcomes"] if row and row["outcomes"] else None for row in rows]

    def _quantiles(self, name: str) -> list[Line]:
        return [Line(f"{one} %", color, self._values(f"{name}_p{one}"), width) for one, color, width in _QUANTILES]

    def _values(self, name: str) -> list[float | None]:
        return [row[name] if (row := self._rows.get(time)) else None for time in self._times]

    def _level(self, name: str, later: str = "") -> list[float | None]:
        """Return the number in each bucket. It is below 0 if the journal began later than the queue.

        Where nothing happened it is that of the bucket before: its last one, ``later``.
        """
        found: list[float | None] = []
        known = 0
        for time in self._times:
            row = self._rows.get(time)
            found.append(max(0, row[name]) if row else None if self._is_in_gap(time) else known)
            known = max(0, row[later or name]) if row else known
        return found


def _by_time(rows: Sequence[Row]) -> dict[datetime, Row]:
    return {one["start"]: one for one in rows}


def _gaps(statistics: ReportStatistics, first: datetime, last: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Return the times of which entries are missing, as far as the plots show them."""
    for one in statistics.tables["missing"]:
        start, end = one["after_at"] or first, one["before_at"] or last
        if end > first and start < last:
            yield max(first, start), min(last, end)
