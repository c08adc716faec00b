"""The tables at the end of a run."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from bench.figures import Figures

_NAMES = {
    "publish": "publish",
    "dedup": "publish, dedup",
    "duplicate": "publish, a duplicate",
    "consume": "claim and ack",
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
_MET = {True: "[green]met[/]", False: "[red]not met[/]", None: ""}


def show(results: Figures, console: Console) -> None:
    """Only what was measured."""
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
    table = _table("Speed as a ratio to raw redis-py (1.00 is as fast, more is faster)")
    table.add_column("client\nand server")
    libraries = [name for name in _LIBRARIES if any(name in row["contenders"] for row in rows)]
    by_clock = [f"{name}\nby {clock}" for name in libraries for clock in ("CPU", "wall")]
    _columns(table, "raw\nµs CPU", *by_clock, "target\nby CPU", "")
    for row in rows:
        found = row["contenders"]
        raw = f"{found['raw']['cpu_us']:.0f}" if "raw" in found else "-"
        ratios = [cell for name in libraries for cell in _ratios(found.get(name))]
        target = _number(row["target"], "≥ {:.2f}"), _MET[row["met"]]
        table.add_row(_title(row), row["placement"], raw, *ratios, *target)
    return table


def _ratios(figures: Figures | None) -> tuple[str, str]:
    if figures is None:
        return "-", "-"
    return f"{figures['cpu_ratio']:.2f} ± {figures['cpu_ratio_spread']:.2f}", f"{figures['wall_ratio']:.2f}"


def _latencies(rows: list[Figures]) -> Table:
    table = _table("From publish to the handler of an idle consumer")
    _columns(table, "median\nms", "p99\nms", "median\nto raw", "p99\nto raw", "samples", "target", "")
    for row in rows:
        for name, figures in row["contenders"].items():
            ours = name == "library"
            cells = ("{median_ms:.2f}", "{p99_ms:.2f}", "{times_raw:.2f}", "{p99_times_raw:.2f}", "{samples}")
            target = (f"≤ {row['target']:.2f}", _MET[row["met"]]) if ours else ("", "")
            table.add_row(f"{row['colour']}: {name}", *(cell.format(**figures) for cell in cells), *target)
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
    table = _table("Redis memory, bytes each (in brackets: the sum of MEMORY USAGE)")
    libraries = [name for name in _LIBRARIES if name in rows[0]["contenders"]]
    _columns(table, *libraries, "target", "")
    for row in rows:
        cells = ["{used:.0f} ({keys:.0f})".format(**row["contenders"][name]) for name in libraries]
        table.add_row(_NAMES[row["what"]], *cells, _number(row["target"], "≤ {:.0f}"), _MET[row["met"]])
    return table


def spark_table(results: Figures) -> Table:
    """What was measured of Spark, by the wall clock: its rate over that of whoever it is compared with."""
    table = _table("Through Spark, messages a second by the wall clock")
    _columns(table, "compared\nwith", "Spark", "ratio", "target", "")
    for name, other, own, ratio, target in _spark_rows(results):
        met = None if target is None else round(ratio, 2) >= target
        table.add_row(name, f"{other:,.0f}", f"{own:,.0f}", f"{ratio:.2f}", _number(target, "≥ {:.2f}"), _MET[met])
    return table


def _spark_rows(results: Figures) -> Iterator[tuple[str, float, float, float, float | None]]:
    if sink := results.get("sink"):
        rates = sink["rates"]
        yield "sink with keys, to the same script by redis-py", rates["raw"], rates["sink"], sink["to_raw"], 0.7
        yield "sink with keys, to a call a row", rates["naive"], rates["sink"], sink["to_naive"], 20.0
    for one in results.get("source", []):
        name = f"source, {one['messages']:,} messages, to LRANGE"
        # The start of a query is the same for few and for many.
        target = 0.35 if one is results["source"][-1] else None
        yield name, one["raw"], one["source"], one["to_raw"], target


def _left_out(left_out: dict[str, str]) -> str:
    return "\n".join(["[bold]Left out[/]", *(f"  {what}: {why}" for what, why in left_out.items())])


_PARTS: dict[str, Callable[[Any], RenderableType]] = {
    "rates": _rates,
    "latency": _latencies,
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
    name = _NAMES[row["workload"]]
    return name if row["colour"] == "sync" else f"asyncio: {name}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
