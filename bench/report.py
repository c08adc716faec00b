"""The tables that a run prints."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from bench.figures import Figures

NAMES = {
    "publish": "publish",
    "dedup": "publish, dedup",
    "duplicate": "publish, a duplicate",
    "consume": "claim and ack",
    "crowd": "publish, many callers",
    "publish_batch": "publish_many, 100",
    "consume_batch": "process_messages, 100",
    "run_1": "run, prefetch 1",
    "run_100": "run, prefetch 100",
    "tenants": "claim and ack, 10 tenants",
    "pending": "a pending message",
    "claimed": "a claimed message",
    "dedup key": "a deduplication key",
}
_LIBRARIES = ("library", "peer")
_REFERENCES = ("streams", "socket", "peer")
_MET = {True: "[green]✓[/]", False: "[red]✗[/]", None: ""}


def show(results: Figures, console: Console) -> None:
    """Print a table for each part that was measured."""
    for part, draw in _PARTS.items():
        if results.get(part):
            console.print(draw(results[part]))


def header(environment: Figures) -> str:
    lines = ["[bold]{server}[/], {cpus} CPUs, JSON of {payload_bytes} bytes".format(**environment)]
    for name, versions in environment["contenders"].items():
        packages = ", ".join(f"{package} {number or 'absent'}" for package, number in versions.items())
        lines.append(f"  {name}: {packages}")
    return "\n".join(lines)


def _rates(rows: list[Figures]) -> Table:
    table = _table("Speed relative to raw redis-py by CPU time of client and server (more is faster)")
    table.add_column("client\nand server")
    _columns(table, "raw\nµs", "library", "target", "", "without\nhiredis", "target", "", *_REFERENCES)
    for row in rows:
        found = row["contenders"]
        raw = f"{found['raw']['cpu_us']:.0f}" if "raw" in found else "-"
        ours = ratio(found.get("library")), _number(row["target"], "{:.2f}"), _MET[row["met"]]
        plain = ratio(found.get("library, plain")), _number(row["target_plain"], "{:.2f}"), _MET[row["met_plain"]]
        others = [ratio(found.get(name), spread=False) for name in _REFERENCES]
        table.add_row(_title(row), row["placement"], raw, *ours, *plain, *others)
    return table


def ratio(figures: Figures | None, *, spread: bool = True) -> str:
    """How fast by CPU time, and how far the middle half of the rounds spreads."""
    if figures is None:
        return ""
    return f"{figures['cpu_ratio']:.2f}" + (f" ± {figures['cpu_ratio_spread']:.2f}" if spread else "")


def _latencies(rows: list[Figures]) -> Table:
    table = _table("Delay from publish to the handler of an idle consumer")
    _columns(table, "median\nms", "p99\nms", "median\nto raw", "p99\nto raw", "samples", "target", "")
    for row in rows:
        for name, figures in row["contenders"].items():
            ours = name == "library"
            cells = ("{median_ms:.2f}", "{p99_ms:.2f}", "{times_raw:.2f}", "{p99_times_raw:.2f}", "{samples}")
            target = (f"≤ {row['target']:.2f}", _MET[row["met"]]) if ours else ("", "")
            table.add_row(f"{row['shell']}: {name}", *(cell.format(**figures) for cell in cells), *target)
    return table


def _due(rows: list[Figures]) -> Table:
    table = _table("Delay from the due time of a delayed message to the handler of an idle consumer")
    _columns(table, "median\nms", "p90\nms", "samples", "target", "")
    for row in rows:
        cells = ("{median_ms:.1f}", "{p90_ms:.1f}", "{samples}", "≤ {target:.0f}")
        table.add_row(row["shell"], *(cell.format(**row) for cell in cells), _MET[row["met"]])
    return table


def _acks(row: Figures) -> Table:
    table = _table("Acknowledging the oldest message in flight, µs of CPU")
    _columns(table, "10 in flight", f"{row['in_flight']:,} in flight", "ratio", "server alone", "target", "")
    for name, figures in row["contenders"].items():
        cells = ("{few_us:.0f}", "{many_us:.0f}", "{times_few:.2f}", "{server_times_few:.2f}")
        target = (f"≤ {row['target']:.2f}", _MET[row["met"]]) if name == "library" else ("", "")
        table.add_row(name, *(cell.format(**figures) for cell in cells), *target)
    return table


def _memory(rows: list[Figures]) -> Table:
    table = _table("Redis memory in bytes (in brackets: the sum of MEMORY USAGE)")
    libraries = [name for name in _LIBRARIES if name in rows[0]["contenders"]]
    _columns(table, *libraries, "target", "")
    for row in rows:
        cells = ["{used:.0f} ({keys:.0f})".format(**row["contenders"][name]) for name in libraries]
        table.add_row(NAMES[row["what"]], *cells, _number(row["target"], "≤ {:.0f}"), _MET[row["met"]])
    return table


def spark_table(results: Figures) -> Table:
    """The rates of Spark by wall time, and their ratio to what each is compared with."""
    table = _table("Through Spark, messages per second of wall time")
    _columns(table, "compared\nwith", "Spark", "ratio", "target", "")
    for name, other, own, ratio, target in _spark_rows(results):
        met = None if target is None else round(ratio, 2) >= target
        table.add_row(name, f"{other:,.0f}", f"{own:,.0f}", f"{ratio:.2f}", _number(target, "≥ {:.2f}"), _MET[met])
    return table


def _spark_rows(results: Figures) -> Iterator[tuple[str, float, float, float, float | None]]:
    if sink := results.get("sink"):
        raw, own, naive = (sink["rates"][name] for name in ("raw", "sink", "naive"))
        yield "sink with keys, compared with the same script by redis-py", raw, own, sink["to_raw"], 0.7
        yield "sink with keys, compared with one call per row", naive, own, sink["to_naive"], 20.0
    for one in results.get("source", []):
        name = f"source, {one['messages']:,} messages, compared with LRANGE"
        # Starting a query takes the same time for few messages and for many, so only the largest has a target.
        target = 0.35 if one is results["source"][-1] else None
        yield name, one["raw"], one["source"], one["to_raw"], target
    for one in results.get("jobs", []):
        yield f"{one['job']}, compared with copying the archive", one["plain"], one["rate"], one["to_plain"], None
    if lake := results.get("lake"):
        rates = {name: lake["entries"] / lake[name] for name in ("copy", "alone", "with history")}
        yield "refresh, compared with copying the entries", rates["copy"], rates["alone"], 1 / lake["to_copy"], 0.25
        name = f"refresh after {lake['days']} days, compared with one without history"
        yield name, rates["alone"], rates["with history"], 1 / lake["to_alone"], 0.77


def _left_out(left_out: dict[str, str]) -> str:
    return "\n".join(["[bold]Left out[/]", *(f"  {what}: {why}" for what, why in left_out.items())])


_PARTS: dict[str, Callable[[Any], RenderableType]] = {
    "rates": _rates,
    "latency": _latencies,
    "due": _due,
    "ack": _acks,
    "memory": _memory,
    "left_out": _left_out,
}


def _table(title: str) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    return table


def _columns(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right")


def _title(row: Figures) -> str:
    name = NAMES[row["workload"]]
    return name if row["shell"] == "sync" else f"async: {name}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
