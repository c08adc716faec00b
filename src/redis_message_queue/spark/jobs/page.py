"""Makes a report one HTML page: everything inside, light and dark, no script, nothing fetched."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

from redis_message_queue.spark.jobs.figures import Figures, Row
from redis_message_queue.spark.jobs.plots import (
    NOTHING,
    Line,
    amount,
    bar,
    bucket_size,
    duration,
    lines,
    moment,
    percent,
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --soft: #5c6475; --paper: #fbfbfd; --card: #ffffff;
  --rule: #e3e6ee; --c1: #2563eb; --c2: #0f9d76; --c3: #d97706; --c4: #dc2626; --good: #0f7b5a; --bad: #c02626;
  --unsure: #a35c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9f2; --soft: #9aa3b8; --paper: #12151d; --card: #1a1e29;
  --rule: #2c3242; --c1: #6ea0ff; --c2: #3fcf9f; --c3: #f2ac4a; --c4: #ff7a7a; --good: #43d3a2; --bad: #ff8080;
  --unsure: #f2b25c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 20px 64px; max-width: 1040px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 36px 0 4px; }
p { margin: 4px 0 12px; } .soft, figcaption { color: var(--soft); }
.verdict { border-left: 4px solid; border-radius: 4px; padding: 12px 16px; margin: 20px 0; background: var(--card); }
.verdict b { text-transform: capitalize; }
.balanced { border-color: var(--good); } .balanced b { color: var(--good); }
.unbalanced { border-color: var(--bad); } .unbalanced b { color: var(--bad); }
.unknown { border-color: var(--unsure); } .unknown b { color: var(--unsure); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 12px; margin: 0; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 14px; }
.tiles dt { color: var(--soft); font-size: 13px; } .tiles dd { margin: 0; font-size: 22px; font-weight: 600; }
.tiles dd small { display: block; font-size: 12px; font-weight: 400; color: var(--soft); }
figure { margin: 8px 0 0; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px; }
figure svg { display: block; width: 100%; height: auto; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--soft); margin-bottom: 6px; }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: middle;
  background: currentColor; }
figcaption { font-size: 13px; margin-top: 6px; }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); font-size: 11px; } .hit { fill: transparent; }
.hit:hover { fill: var(--soft); fill-opacity: .14; }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
.dot, .fill { fill: currentColor; }
.track { fill: var(--rule); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .bar { width: 100%; min-width: 80px; height: 8px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: 13px; }
th:first-child, td:first-child, .text { text-align: left; }
.text { white-space: normal; overflow-wrap: anywhere; unicode-bidi: isolate; min-width: 7em; }
tr.sum td { font-weight: 600; } code { font-size: 13px; } td code { white-space: nowrap; }
summary { cursor: pointer; color: var(--soft); }
@media print { body { max-width: none; } figure, .tiles div { break-inside: avoid; } }
"""

_ACCOUNTS = {
    "entered": "Entered: published or redriven",
    "entered_unseen": "Seen only later: published before the journal began, or in a gap",
    "acked": "Acknowledged",
    "handed_off": "Handed off to other queues",
    "failed": "Failed for good",
    "dead": "Dead-lettered",
    "expired": "Expired unread",
    "dropped": "Dropped to make room",
    "purged": "Purged or deleted by an operator",
    "remaining": "Still in the queue, by the journal",
}
_ALWAYS = ("entered", "acked", "dead", "remaining")  # also where there are none
_MOST_ROWS = 50  # of a table on the page; the files have all


def page(figures: Figures, made_at: datetime) -> str:
    """The whole page."""
    summary, tables = figures.summary, figures.tables
    period = f"{moment(summary['first_at'])} to {moment(summary['last_at'])}"
    body = [
        f"<h1>{escape(figures.queue)}</h1>",
        f'<p class="soft">What went through this queue from {period}. '
        f"From {amount(summary['entries'])} journal entries; made {moment(made_at)}.</p>",
        _verdict(summary["conservation"]),
        _tiles(summary),
        *(_plots(tables["seconds"], "second") if tables.get("seconds") else _plots(tables["minutes"], "minute")),
        _tenants(tables["tenants"], summary["fairness"]),
        _failures(tables["failures"]),
        _dead_letters(tables["dead_letters"]),
        _conservation(tables["conservation"], summary["conservation"]),
        _missing(tables["missing"]),
        _NOTES,
    ]
    title = escape(f"{figures.queue}: queue report")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Names of tenants and errors come from outside: should one ever get through, it can fetch and run nothing.
        """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _verdict(conservation: Row) -> str:
    word, because = conservation["verdict"], escape(conservation["because"])
    return f'<div class="verdict {word}" role="status"><b>{word}</b>: {because}.</div>'


def _tiles(summary: Row) -> str:
    minutes = max(1.0, (summary["last_at"] - summary["first_at"]).total_seconds() / 60)
    tiles = [
        ("Published", amount(summary["published"]), f"{amount(summary['published'] / minutes)} a minute"),
        ("Handled", amount(summary["acked"]), f"{amount(summary['acked'] / minutes)} a minute"),
        ("Failed", amount(summary["failed"]), f"{amount(summary['retried'])} retries"),
        ("Dead-lettered", amount(summary["dead"]), f"{amount(summary['redriven'])} redriven"),
        ("Waiting, median", duration(summary["waiting_p50"]), _tail(summary, "waiting")),
        ("Processing, median", duration(summary["processing_p50"]), _tail(summary, "processing")),
        ("Duplicates", percent(summary["duplicate_ratio"]), f"{amount(summary['duplicates'])} suppressed"),
        ("Redelivered", percent(summary["redelivery_ratio"]), f"{amount(summary['reclaimed'])} from lost leases"),
    ]
    cells = (f"<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>" for name, value, note in tiles)
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _tail(summary: Row, name: str) -> str:
    return f"95 %: {duration(summary[f'{name}_p95'])}, 99 %: {duration(summary[f'{name}_p99'])}"


# -- plots

_UNITS = {"minute": timedelta(minutes=1), "second": timedelta(seconds=1)}


def _plots(rows: Sequence[Row], unit: str) -> list[str]:
    if not rows:
        return []
    length = _UNITS[unit]
    step = bucket_size(rows[0][unit], rows[-1][unit], length)
    times, buckets = _buckets(rows, unit, step * length)
    each = f"each {duration((step * length).total_seconds())}"
    average = "" if step == 1 else f", the average of {each}"

    def rate(name: str) -> list[float | None]:
        return [sum(one[name] for one in bucket) / step for bucket in buckets]

    def worst(name: str) -> list[float | None]:
        return [max((one[name] for one in bucket if one[name] is not None), default=None) for bucket in buckets]

    backlog: list[float | None] = []
    for bucket in buckets:
        known = bucket[-1]["backlog"] if bucket else backlog[-1] if backlog else 0
        backlog.append(max(0, known or 0))  # below 0 where the journal began later than the queue
    counts = [("Published", 1, "published"), ("Handled", 2, "acked"), ("Retried", 3, "retried")]
    flow = [Line(name, colour, rate(column)) for name, colour, column in counts]
    lost = zip(rate("failed"), rate("dead"), strict=True)
    flow.append(Line("Failed or dead", 4, [(failed or 0) + (dead or 0) for failed, dead in lost]))

    def spread(name: str) -> list[Line]:
        pairs = ((50, 2), (95, 3), (99, 4))
        return [Line(f"{quantile} %", colour, worst(f"{name}_p{quantile}")) for quantile, colour in pairs]

    tops = "" if step == 1 else f" The worst {unit} of {each}."
    return [
        _figure("Throughput", times, flow, "count", f"Messages a {unit}{average}."),
        _figure(
            "In the queue",
            times,
            [Line("Messages", 1, backlog)],
            "count",
            "Entered and not yet gone, as far as the journal tells.",
        ),
        _figure("Waiting time", times, spread("waiting"), "seconds", f"From deliverable to claimed.{tops}"),
        _figure("Processing time", times, spread("processing"), "seconds", f"From claimed to its outcome.{tops}"),
    ]


def _buckets(rows: Sequence[Row], unit: str, step: timedelta) -> tuple[list[datetime], list[list[Row]]]:
    """Every place in time, also those where nothing happened."""
    first, last = rows[0][unit], rows[-1][unit]
    times = [first + step * place for place in range((last - first) // step + 1)]
    buckets: list[list[Row]] = [[] for _ in times]
    for one in rows:
        buckets[(one[unit] - first) // step].append(one)
    return times, buckets


def _figure(title: str, times: Sequence[datetime], series: Sequence[Line], unit: str, caption: str) -> str:
    names = "".join(f'<span><i class="c{one.colour}"></i>{escape(one.name)}</span>' for one in series)
    return (
        f'<h2>{escape(title)}</h2><figure><div class="legend">{names}</div>'
        f"{lines(title, times, series, unit)}<figcaption>{escape(caption)}</figcaption></figure>"
    )


# -- tables

Cell = tuple[str, Callable[[Row], str], bool]  # the heading, the text, and whether it is text or a number


def _table(rows: Sequence[Row], cells: Sequence[Cell], nothing: str) -> str:
    if not rows:
        return f'<p class="soft">{nothing}</p>'
    kinds = ['<{0} class="text">' if is_text else "<{0}>" for _, _, is_text in cells]
    head = "".join(f"{kind.format('th')}{name}</th>" for kind, (name, _, _) in zip(kinds, cells, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"{kind.format('td')}{cell(row)}</td>" for kind, (_, cell, _) in zip(kinds, cells, strict=True))
        + "</tr>"
        for row in rows[:_MOST_ROWS]
    )
    more = len(rows) - _MOST_ROWS
    rest = f'<p class="soft">And {amount(more)} more in the files beside this page.</p>' if more > 0 else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{rest}'


def _text(column: str, nothing: str = NOTHING) -> Callable[[Row], str]:
    return lambda row: escape(str(row[column])) if row[column] is not None else f'<span class="soft">{nothing}</span>'


def _number(column: str) -> Callable[[Row], str]:
    return lambda row: amount(row[column])


def _tenants(rows: Sequence[Row], fairness: float | None) -> str:
    cells: list[Cell] = [
        ("Tenant", _text("tenant", "none"), True),
        ("Share", lambda row: bar(row["share"] or 0), True),
        ("", lambda row: percent(row["share"]), False),
        ("Deliveries", _number("delivered"), False),
        ("Published", _number("published"), False),
        ("Handled", _number("acked"), False),
        ("Failed or dead", lambda row: amount(row["failed"] + row["dead"]), False),
        ("Waiting, median", lambda row: duration(row["waiting_p50"]), False),
        ("95 %", lambda row: duration(row["waiting_p95"]), False),
    ]
    index = "" if fairness is None else _fairness(fairness, len(rows))
    return f"<h2>Tenants</h2>{index}{_table(rows, cells, 'Nothing was delivered.')}"


def _fairness(index: float, tenants: int) -> str:
    scale = f"1 if all {tenants} were served equally often, {1 / tenants:.3f} if one got everything"
    return (
        f"<p>Jain's fairness index of the deliveries: <b>{index:.3f}</b> "
        f'<span class="soft">({scale}; who publishes more is served more)</span></p>'
    )


def _failures(rows: Sequence[Row]) -> str:
    cells: list[Cell] = [
        ("Error", lambda row: f"<code>{escape(row['error_type'])}</code>", True),
        ("Failed", _number("failed"), False),
        ("Retried", _number("retried"), False),
        ("Dead", _number("dead"), False),
        ("All", _number("total"), False),
        ("Messages", _number("messages"), False),
    ]
    return f"<h2>Failures by type</h2>{_table(rows, cells, 'No handler has failed.')}"


def _dead_letters(rows: Sequence[Row]) -> str:
    cells: list[Cell] = [
        ("Error", _text("error_type", "no error"), True),
        ("Reason", _text("reason"), True),
        ("Letters", _number("letters"), False),
        ("Tenants", _number("tenants"), False),
        ("First", lambda row: moment(row["first_at"]), False),
        ("Last", lambda row: moment(row["last_at"]), False),
        ("Newest", lambda row: f"<code>{escape(row['newest_id'] or '')}</code>", False),
    ]
    return f"<h2>Dead letters by signature</h2>{_table(rows, cells, 'There are no dead letters.')}"


def _conservation(rows: Sequence[Row], conservation: Row) -> str:
    said = "".join(_account(row) for row in rows if row["messages"] or row["account"] in _ALWAYS)
    held = "was not noted" if conservation["held"] is None else amount(conservation["held"])
    said += f'<tr class="sum"><td>Held by the queue at the last entry</td><td>{held}</td></tr>'
    return (
        '<h2>Where every message is</h2><p class="soft">Each message counts once, by the last thing known of it.</p>'
        f'<div class="scroll"><table><tbody>{said}</tbody></table></div>'
    )


def _account(row: Row) -> str:
    sum_line = ' class="sum"' if row["account"] in ("entered", "remaining") else ""
    return f"<tr{sum_line}><td>{_ACCOUNTS[row['account']]}</td><td>{amount(row['messages'])}</td></tr>"


def _missing(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    cells: list[Cell] = [
        ("From serial", _number("first_serial"), False),
        ("Entries", _number("count"), False),
    ]
    return (
        "<h2>Gaps</h2><p>These journal entries were never seen. All figures on this page leave them out; give the "
        f"journal a larger limit, or archive more often.</p>{_table(rows, cells, '')}"
    )


_NOTES = """<h2>How it is counted</h2>
<details><summary>Definitions</summary>
<p>All times are those of the Redis server, in UTC. <b>Waiting</b> begins when a message can be taken: it was
published or given back, or its delay or the pause before its retry ended; it ends with the claim. A message taken
over from a lost lease has no waiting time, since nobody knows when its consumer died. <b>Processing</b> is from the
claim to the handler's outcome. <b>Handled</b> messages were acknowledged or handed off. <b>Duplicates</b> are
publishes that deduplication suppressed, among all publishes. <b>Redelivered</b> are deliveries that were not the
first of their message, among all deliveries. Quantiles are values that occurred, by nearest rank; among more than
10,000 values a quantile may be off by a ten-thousandth of the ranks.</p></details>"""


def everything(figures: Figures) -> dict[str, Any]:
    """The same for programs."""
    return {"queue": figures.queue, "summary": figures.summary, "tables": figures.tables}
