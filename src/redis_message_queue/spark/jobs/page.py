"""Renders a report as one HTML page, from the template beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from redis_message_queue.spark.jobs.plots import (
    Line,
    amount,
    bar,
    bucket_size,
    draw_lines,
    duration,
    moment,
    percent,
)
from redis_message_queue.spark.jobs.statistics import ReportStatistics, Row

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


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn plot, with its heading, legend and caption."""

    title: str
    lines: Sequence[Line]
    svg: Markup
    caption: str


def render_page(statistics: ReportStatistics, made_at: datetime) -> str:
    """Return the whole page."""
    page = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page.filters |= {"amount": amount, "duration": duration, "moment": moment, "percent": percent}
    page.filters["bar"] = lambda share: Markup(bar(share or 0))
    tables = statistics.tables
    unit = "second" if tables.get("seconds") else "minute"
    return page.get_template("report.html").render(
        queue=statistics.queue,
        summary=statistics.summary,
        tables=tables,
        tiles=_tiles(statistics.summary),
        plots=_plots(tables[f"{unit}s"], unit),
        accounts=_ACCOUNTS,
        most_rows=_MOST_ROWS,
        made_at=made_at,
    )


def _tiles(summary: Row) -> list[tuple[str, str, str]]:
    """Return name, value and note of the figures at the top."""
    minutes = max(1.0, (summary["last_at"] - summary["first_at"]).total_seconds() / 60)

    def tail(name: str) -> str:
        return f"95 %: {duration(summary[f'{name}_p95'])}, 99 %: {duration(summary[f'{name}_p99'])}"

    return [
        ("Published", amount(summary["published"]), f"{amount(summary['published'] / minutes)} a minute"),
        ("Handled", amount(summary["acked"]), f"{amount(summary['acked'] / minutes)} a minute"),
        ("Failed", amount(summary["failed"]), f"{amount(summary['retried'])} retries"),
        ("Dead-lettered", amount(summary["dead"]), f"{amount(summary['redriven'])} redriven"),
        ("Waiting, median", duration(summary["waiting_p50"]), tail("waiting")),
        ("Processing, median", duration(summary["processing_p50"]), tail("processing")),
        ("Duplicates", percent(summary["duplicate_ratio"]), f"{amount(summary['duplicates'])} suppressed"),
        ("Redelivered", percent(summary["redelivery_ratio"]), f"{amount(summary['reclaimed'])} from expired leases"),
    ]


def _plots(rows: Sequence[Row], unit: str) -> list[Plot]:
    if not rows:
        return []
    length = _UNITS[unit]
    step = bucket_size(rows[0][unit], rows[-1][unit], length)
    times, buckets = _buckets(rows, unit, step * length)
    each = f"each {duration((step * length).total_seconds())}"
    average, worst = ("", "") if step == 1 else (f", the average of {each}", f" The worst {unit} of {each}.")

    def plot(title: str, lines: Sequence[Line], value: str, caption: str) -> Plot:
        return Plot(title, lines, Markup(draw_lines(title, times, lines, value)), caption)

    def rate(*names: str) -> list[float | None]:
        return [sum(one[name] for one in bucket for name in names) / step for bucket in buckets]

    def quantiles(name: str) -> list[Line]:
        return [
            Line(f"{one} %", colour, _worst(buckets, f"{name}_p{one}")) for one, colour in ((50, 2), (95, 3), (99, 4))
        ]

    flow = [
        Line("Published", 1, rate("published")),
        Line("Handled", 2, rate("acked")),
        Line("Retried", 3, rate("retried")),
        Line("Failed or dead", 4, rate("failed", "dead")),
    ]
    backlog = [Line("Messages", 1, _backlog(buckets))]
    return [
        plot("Throughput", flow, "count", f"Messages a {unit}{average}."),
        plot("In the queue", backlog, "count", "Entered and not yet gone, by the journal."),
        plot("Waiting time", quantiles("waiting"), "seconds", f"From deliverable to claimed.{worst}"),
        plot("Processing time", quantiles("processing"), "seconds", f"From claimed to its outcome.{worst}"),
    ]


def _buckets(rows: Sequence[Row], unit: str, step: timedelta) -> tuple[list[datetime], list[list[Row]]]:
    """Return the start of each bucket and its rows; there may be none."""
    first, last = rows[0][unit], rows[-1][unit]
    times = [first + step * place for place in range((last - first) // step + 1)]
    buckets: list[list[Row]] = [[] for _ in times]
    for one in rows:
        buckets[(one[unit] - first) // step].append(one)
    return times, buckets


def _worst(buckets: Sequence[list[Row]], name: str) -> list[float | None]:
    return [max((one[name] for one in bucket if one[name] is not None), default=None) for bucket in buckets]


def _backlog(buckets: Sequence[list[Row]]) -> list[float | None]:
    """Return the last known backlog of each bucket. It is below 0 if the journal began later than the queue."""
    backlog: list[float | None] = []
    for bucket in buckets:
        known = bucket[-1]["backlog"] if bucket else backlog[-1] if backlog else 0
        backlog.append(max(0, known or 0))
    return backlog
