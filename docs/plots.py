"""Draws the plots of the documentation as SVG files that stand alone, on light and dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 34, 44
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#667}.title{font-size:14px;font-weight:600}.grid{stroke:#8884}"
    "polyline{fill:none;stroke-width:1.6}.fault{fill:#d33;fill-opacity:.16}.one{stroke:#d33;stroke-dasharray:4 4}"
)
_COLOURS = ("#2874c8", "#e08a1e", "#3a9d5d", "#9353b8", "#777")
OURS, OURS_PALE, STREAMS, OTHER = "#2874c8", "#2874c888", "#e08a1e", "#8899aa"


@dataclass(frozen=True, slots=True)
class Line:
    """A named series: one value for each point in time, or None."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Band:
    """A time in which something was wrong, with a text that browsers show under the pointer."""

    name: str
    began: float
    ended: float


def draw(
    title: str,
    seconds: Sequence[float],
    lines: Sequence[Line],
    *,
    unit: str = "",
    bands: Sequence[Band] = (),
    logarithmic: bool = False,
    from_zero: bool = True,
) -> str:
    """A plot over time. ``seconds`` are the times of the values; a logarithmic one shows powers of ten."""
    scale = _Scale(seconds, [value for line in lines for value in line.values if value is not None])
    axis = scale.powers() if logarithmic else scale.steps(from_zero)
    parts: list[str] = []
    for band in bands:
        x, end = scale.x(band.began), scale.x(max(band.ended, band.began))
        box = f'x="{x}" y="{_TOP}" width="{max(1.5, round(end - x, 1))}" height="{HEIGHT - _TOP - _BOTTOM}"'
        parts.append(f'<rect class="fault" {box}><title>{escape(band.name)}</title></rect>')
    for value, label in axis:
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{label}{escape(unit)}</text>')
    parts += _time_axis(scale)
    for place, line in enumerate(lines):
        colour = _COLOURS[place % len(_COLOURS)]
        parts += _draw_line(line, scale, colour)
        legend = f'x="{_LEFT + 150 * place}" y="{HEIGHT - 6}" style="fill:{colour}"'
        parts.append(f"<text {legend}>{escape(line.name)}</text>")
    return _svg(title, WIDTH, HEIGHT, _LEFT, parts)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a row: its length, and its colour."""

    value: float
    colour: str = OTHER


def bars(
    title: str,
    rows: Mapping[str, Sequence[Bar | None]],
    *,
    legend: Mapping[str, str] | None = None,
    line: float | None = None,
) -> str:
    """Horizontal bars, one below another in each row, with a dashed line at one value.

    Args:
        title: The text above them.
        rows: The bars of each name; None leaves room for one that is missing.
        legend: The colour of each series.
        line: The value of the dashed line.
    """
    left, tall = 180, 14
    values = [bar.value for row in rows.values() for bar in row if bar is not None]
    scale = (WIDTH - left - 70) / max([*values, line or 0.0])
    parts = [
        f'<text x="{left + 170 * place}" y="36" style="fill:{colour}">{escape(name)}</text>'
        for place, (name, colour) in enumerate((legend or {}).items())
    ]
    y = 48 if legend else 28
    for name, row in rows.items():
        parts.append(
            f'<text x="{left - 8}" y="{y + tall * len(row) / 2 + 4:g}" text-anchor="end">{escape(name)}</text>'
        )
        for bar in row:
            if bar is not None:
                size = f'width="{max(bar.value * scale, 1):.1f}" height="{tall - 2}"'
                parts.append(f'<rect style="fill:{bar.colour}" x="{left}" y="{y}" {size}/>')
                parts.append(f'<text x="{left + bar.value * scale + 6:.1f}" y="{y + tall - 3}">{bar.value:.2f}</text>')
            y += tall
        y += 4 * len(row)
    if line is not None:
        x = f"{left + line * scale:.1f}"
        parts.append(f'<line class="one" x1="{x}" x2="{x}" y1="{44 if legend else 24}" y2="{y}"/>')
    return _svg(title, WIDTH, y + 8, left, parts)


def curves(title: str, across: str, up: str, series: dict[str, Sequence[tuple[float, float]]]) -> str:
    """Lines over a logarithmic axis, from zero up."""
    left, top, wide, high = 60, 50, 640, 220
    xs = sorted({x for line in series.values() for x, _ in line})
    most = max(y for line in series.values() for _, y in line) or 1.0
    low, span = math.log10(xs[0]), (math.log10(xs[-1]) - math.log10(xs[0])) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (math.log10(x) - low) / span * wide, top + high - y / (most * 1.1) * high

    parts: list[str] = []
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, y = place(xs[0], most * part)
        parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + wide}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{most * part:.3g}</text>')
    for value in xs:
        x, _ = place(value, 0)
        parts.append(f'<text x="{x:.1f}" y="{top + high + 18}" text-anchor="middle">{value:,.0f}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline style="stroke:{colour}" points="{points}"/>')
        parts.append(f'<text style="fill:{colour}" x="{left + 190 * number}" y="38">{escape(name)}</text>')
    parts.append(
        f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle">{escape(across)}; {escape(up)}</text>'
    )
    return _svg(title, left + wide + 40, top + high + 50, left, parts)


def _svg(title: str, width: float, height: float, left: float, parts: Sequence[str]) -> str:
    """Return a plot with its title, for any background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="title" x="{left}" y="18">{escape(title)}</text>',
    )
    return "\n".join([*head, *parts, "</svg>", ""])


class _Scale:
    """Turns times and values into places on the plot."""

    def __init__(self, seconds: Sequence[float], values: Sequence[float]) -> None:
        self.seconds = seconds
        self.last = max([*seconds, 1.0])
        self._values = values
        self._low, self._high, self._logarithmic = 0.0, 1.0, False

    def powers(self) -> list[tuple[float, str]]:
        positive = [value for value in self._values if value > 0] or [0.001, 1.0]
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        high = max(high, low + 1)
        self._low, self._high, self._logarithmic = low, high, True
        return [(10.0**power, f"{10.0**power:g}") for power in range(low, high + 1)]

    def steps(self, from_zero: bool) -> list[tuple[float, str]]:
        top = max([*self._values, 0.0]) or 1.0
        bottom = 0.0 if from_zero else min(self._values, default=0.0)
        raw = (top - bottom) / 4 or top / 4
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= raw * 0.999)
        first = math.floor(bottom / step)
        ticks = [step * number for number in range(first, math.ceil(top / step) + 1)]
        self._low, self._high = ticks[0], ticks[-1]
        return [(tick, f"{tick:g}") for tick in ticks]

    def x(self, seconds: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(seconds / self.last, 0.0), 1.0), 1)

    def y(self, value: float) -> float:
        if self._logarithmic:
            value = math.log10(max(value, 10.0**self._low))
        share = (value - self._low) / (self._high - self._low)
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - share), 1)


def _time_axis(scale: _Scale) -> Iterator[str]:
    unit, name = (60.0, "min") if scale.last > 180 else (1.0, "s")
    step = next(one for one in (1, 2, 5, 10, 15, 20, 30, 60, 120) if scale.last / unit / one <= 12)
    for number in range(0, int(scale.last / unit) + 1, step):
        yield f'<text x="{scale.x(number * unit)}" y="{HEIGHT - 26}" text-anchor="middle">{number} {name}</text>'


def _draw_line(line: Line, scale: _Scale, colour: str) -> Iterator[str]:
    """A path for each run of values. A single value is a dot, or it would be invisible."""
    run: list[tuple[float, float]] = []
    for second, value in zip([*scale.seconds, 0.0], [*line.values, None], strict=True):
        if value is not None:
            run.append((scale.x(second), scale.y(value)))
            continue
        if len(run) == 1:
            yield f'<circle cx="{run[0][0]}" cy="{run[0][1]}" r="2" style="fill:{colour}"/>'
        elif run:
            points = " ".join(f"{x},{y}" for x, y in run)
            yield f'<polyline style="stroke:{colour}" points="{points}"/>'
        run = []
