"""Draws the plots of a report as SVG, with values under the pointer and without a script."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

WIDTH, HEIGHT = 960, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 26
_MOST_BUCKETS = 240  # about four units of width each
NOTHING = "\N{EN DASH}"
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440, 10080, 43200)  # minutes, or the first of them seconds


@dataclass(frozen=True, slots=True)
class Line:
    """A named series: one value per bucket of time, or None."""

    name: str
    colour: int  # which of the page's colours
    values: Sequence[float | None]


def bucket_size(first: datetime, last: datetime, unit: timedelta) -> int:
    """Return how many minutes or seconds one bucket of a plot covers."""
    units = (last - first) / unit + 1
    return next((step for step in _STEPS if units / step <= _MOST_BUCKETS), _STEPS[-1])


def draw_lines(title: str, times: Sequence[datetime], series: Sequence[Line], unit: str) -> str:
    """Return a plot. ``unit`` is `count` or `seconds`."""
    top = max((value for line in series for value in line.values if value is not None), default=0) or 1
    ticks = list(_ticks(top, unit))
    top = max(top, ticks[-1])
    shown = {"count": amount, "seconds": duration}[unit]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        'preserveAspectRatio="xMidYMid meet">'
    ]
    for tick in ticks:
        y = _y(tick, top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:g}" text-anchor="end">{shown(tick)}</text>')
    parts += _time_axis(times)
    for line in series:
        parts += _draw_line(line, top, len(times))
    parts += _tooltips(times, series, shown)
    return "".join((*parts, "</svg>"))


def _x(place: float, count: int) -> float:
    inner = WIDTH - _LEFT - _RIGHT
    return round(_LEFT + (inner / 2 if count < 2 else inner * place / (count - 1)), 1)


def _y(value: float, top: float) -> float:
    return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - value / top), 1)


def _ticks(top: float, unit: str) -> Iterator[float]:
    """Return four or five round numbers from 0."""
    raw = top / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= raw * 0.999)
    if unit == "count":
        step = max(1.0, math.ceil(step))
    tick = 0.0
    while tick < top + step * 0.999:
        yield round(tick, 12)
        tick += step


def _time_axis(times: Sequence[datetime]) -> Iterator[str]:
    """Return some six times, with the day if there is more than one."""
    several_days = times[0].date() != times[-1].date()
    hours = "%H:%M" if times[0].second == times[-1].second == 0 else "%H:%M:%S"
    every = max(1, math.ceil(len(times) / 6))
    for place in range(0, len(times), every):
        text = times[place].strftime(f"%b %d {hours}" if several_days else hours)
        anchor = "start" if place == 0 and len(times) > 1 else "middle"
        parts = f'x="{_x(place, len(times))}" y="{HEIGHT - 8}" text-anchor="{anchor}"'
        yield f'<text class="tick" {parts}>{text}</text>'


def _draw_line(line: Line, top: float, count: int) -> Iterator[str]:
    """Return a path for each run of values. A single value is a dot, or it would be invisible."""
    run: list[str] = []
    for place, value in enumerate((*line.values, None)):
        if value is not None:
            run.append(f"{_x(place, count)},{_y(value, top)}")
            continue
        if len(run) == 1:
            x, y = run[0].split(",")
            yield f'<circle class="dot c{line.colour}" cx="{x}" cy="{y}" r="2.5"/>'
        elif run:
            yield f'<polyline class="line c{line.colour}" points="{" ".join(run)}"/>'
        run = []


def _tooltips(times: Sequence[datetime], series: Sequence[Line], shown: Callable[[float | None], str]) -> Iterator[str]:
    """Return an invisible column per bucket, with a title that browsers show under the pointer."""
    width = max(1.0, (WIDTH - _LEFT - _RIGHT) / max(1, len(times) - 1))
    for place, time in enumerate(times):
        shown_values = [f"{line.name}: {shown(value)}" for line in series if (value := line.values[place]) is not None]
        if shown_values:
            text = escape("\n".join((time.strftime("%Y-%m-%d %H:%M:%S UTC"), *shown_values)))
            x = round(_x(place, len(times)) - width / 2, 1)
            box = f'x="{x}" y="{_TOP}" width="{width:.1f}" height="{HEIGHT - _TOP - _BOTTOM}"'
            yield f'<rect class="hit" {box}><title>{text}</title></rect>'


def bar(share: float, colour: int = 1) -> str:
    """Return a bar for the cell of a table."""
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/>'
        f'<rect class="fill c{colour}" width="{share * 100:.1f}" height="8"/>'
        "</svg>"
    )


def amount(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """Return a duration in a readable unit."""
    if seconds is None:
        return NOTHING
    if seconds == 0:
        return "0"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    pairs = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next(place for place, (count, _) in enumerate(pairs) if count)
    return " ".join(f"{count} {name}" for count, name in pairs[first : first + 2] if count)


def percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    return f"{share:.1%}" if share == 0 or share >= 0.001 else f"{share:.3%}"


def moment(time: datetime | None) -> str:
    return NOTHING if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
