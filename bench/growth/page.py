"""Writes docs/explanation/growth.md: the costs along each axis, their verdicts, and a plot of each."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.contender import ROOT
from bench.growth.axes import AXES
from bench.growth.verdict import Verdict, judge
from docs.plots import curves

PATH = Path("docs", "explanation", "growth.md")
PLOTS = Path("docs", "explanation", "growth")
_ABOUT = """# Growth

This page shows what a message costs when a queue gets larger, and how long the longest script takes. `make growth`
measures and writes it, with the verdicts: run it on your own machine.

A figure is CPU time in microseconds for each message: of the server, and of the client. All sizes of an axis exist on
one server and are measured in turns; the tables show the median of the rounds. Messages have 20 bytes, unless the axis
is their size. A cost is *flat* if it grows by at most a quarter from the smallest size to the largest, *logarithmic* if
each decade adds at most about a third of the first cost, *flat from* a size if the larger half of the axis is, and
otherwise a power of the size, *linear* if the exponent is about 1. In brackets: the last cost divided by the first, and
the exponent that fits best. The longest script is by the wall clock of the server, so a busy machine shows in it.
"""
_TITLES = {
    "pending": "Messages that wait",
    "in_flight": "Messages in flight",
    "tenants": "Tenants",
    "waiting": "Consumers that wait",
    "payload": "Size of a message",
    "journal": "With and without a journal",
}
_NOTES = {
    "payload": "A message is copied into the server, out of it, and between its lists, so its cost cannot be flat.",
    "tenants": "A batch of 100 messages takes turns among up to 100 tenants, so it costs more with 100 tenants than "
    "with one, and no more with 100,000.",
    "waiting": "The server's figure contains the publish, the wake-up of one consumer, its claim and its "
    "acknowledgement. What the same number of idle consumers costs in the same time is subtracted. No more scripts run "
    "for each message, however many consumers wait. With 500 of them the server still spends more: probably because "
    "their own commands then come one by one, and not many at a time as in a quiet second.",
}


def verdicts(figures: dict[str, Any]) -> dict[tuple[str, str], Verdict]:
    """For each operation and each side, how its cost grows."""
    points = figures["points"]
    if figures["axis"] == "journal" or len(points) < 2:
        return {}
    return {
        (operation, side): judge([(point["size"], max(point["costs"][operation][side], 0.1)) for point in points])
        for operation in points[0]["costs"]
        for side in ("server", "client")
    }


def section(figures: dict[str, Any]) -> Iterator[str]:
    """The table of an axis, and its verdicts."""
    axis, points = figures["axis"], figures["points"]
    operations = list(points[0]["costs"])
    yield f"\n## {_TITLES[axis]}\n"
    if axis in _NOTES:
        yield f"{_NOTES[axis]}\n"
    heads = [f"{operation}: {side}" for operation in operations for side in ("server", "client")]
    if "scripts" in points[0]:
        heads.append("scripts for each message")
    yield f"| {AXES[axis]} | {' | '.join(heads)} | longest script |"
    yield "|---|" + "---|" * (len(heads) + 1)
    for point in points:
        cells = [f"{point['costs'][operation][side]:.1f}" for operation in operations for side in ("server", "client")]
        if "scripts" in point:
            cells.append(f"{point['scripts']:.1f}")
        yield f"| {point['size']:,} | {' | '.join(cells)} | {point['longest_ms']:.2f} ms |"
    found = verdicts(figures)
    if found:
        words = [str(found[operation, side]) for operation in operations for side in ("server", "client")]
        words += [""] if "scripts" in points[0] else []
        yield f"| **verdict** | {' | '.join(words)} | |"
        yield f"\n![{_TITLES[axis]}](growth/{axis}.svg)"


def write(results: list[dict[str, Any]], environment: dict[str, Any]) -> None:
    """Replace the page and its plots."""
    low, high = environment["load"]
    lines = [
        _ABOUT,
        f"Measured on {environment['date']} with {environment['server']}, Python {environment['python']} and redis-py "
        f"{environment['redis']}",
        f"on {environment['cpus']} CPUs ({environment['processor']}), {environment['rounds']} rounds. The load average "
        f"was {low:g} to {high:g}.",
    ]
    (ROOT / PLOTS).mkdir(exist_ok=True)
    for figures in results:
        lines += section(figures)
        if figures["axis"] != "journal":
            (ROOT / PLOTS / f"{figures['axis']}.svg").write_text(plot(figures))
    (ROOT / PATH).write_text("\n".join(lines).rstrip() + "\n")


def plot(figures: dict[str, Any]) -> str:
    """The server's microseconds for each message."""
    axis, points = figures["axis"], figures["points"]
    lines: dict[str, Sequence[tuple[float, float]]] = {
        operation: [(float(point["size"]), float(point["costs"][operation]["server"])) for point in points]
        for operation in points[0]["costs"]
    }
    return curves(_TITLES[axis], AXES[axis], "µs of the server's CPU for each message", lines)
