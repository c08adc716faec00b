"""Draws the plots of a report as SVG, with values under the pointer and without a script."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import escape

NOTHING = "\N{EN DASH}"
_TOP, _RIGHT, _BOTTOM = 10, 14, 26
_TEXT_WIDTH = 6.4  # of a character of 11 pixels, the widest that axes have
_DAY = 86_400
_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10080, 43200)  # a bucket: minutes, or as many seconds
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY),
)
_DURATION_STEPS = (*(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800), *(3600, 7200, 10800, 21600, 43200, _DAY))


@dataclass(frozen=True, slots=True)
class Size:
    """One drawing of a plot. A page has two, and shows the one that fits."""

    name: str
    width: int
    height: int
    most_buckets: int
    time_ticks: int


WIDE = Size("wide", 960, 240, 240, 8)
NARROW = Size("narrow", 360, 220, 90, 4)
SIZES = (WIDE, NARROW)


@dataclass(frozen=True, slots=True)
class Line:
    """A named series: one value per bucket of time, or None where it is not known."""

    name: str
    color: int  # which of the page's colors
    values: Sequence[float | None]
    width: float = 1.8


@dataclass(frozen=True, slots=True)
class Series:
    """The lines of a plot over buckets of time."""

    title: str
    caption: str
    unit: str  # `count`, `average` of counts, `seconds` or `share`
    times: Sequence[datetime]  # when each bucket begins
    step: timedelta
    lines: Sequence[Line]
    nothing: str = ""  # the text instead of a plot without values
    gaps: Sequence[tuple[datetime, datetime]] = field(default=())  # times of which entries are missing

    @property
    def is_empty(self) -> bool:
        return not any(value for line in self.lines for value in line.values)

    def shown(self, value: float | None) -> str:
        """Return a value as the page shows it."""
        return _FORMATS[self.unit](value)


def bucket_size(first: datetime, last: datetime, unit: timedelta, most: int = WIDE.most_buckets) -> int:
    """Return how many minutes or seconds one bucket of a plot covers."""
    units = (last - first) / unit + 1
    return next((step for step in _MINUTES if units / step <= most), _MINUTES[-1])


def floor_time(time: datetime, step: timedelta) -> datetime:
    """Return the last time of the day's grid, in its zone, that is not after this one: buckets begin at round times."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC) - (time.utcoffset() or timedelta())
    return (epoch + (time - epoch) // step * step).astimezone(time.tzinfo)


def draw(series: Series, size: Size = WIDE) -> str:
    """Return a plot."""
    known = [value for line in series.lines for value in line.values if value is not None]
    ticks = value_ticks(max(known, default=0), series.unit)
    scale = _Scale(series, size, ticks)
    parts = [
        f'<svg class="{size.name}" viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-label="{escape(series.title)}" preserveAspectRatio="xMidYMid meet">'
    ]
    for tick in ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{scale.left}" x2="{size.width - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{scale.left - 8}" y="{y + 4:g}" text-anchor="end">{series.shown(tick)}</text>'
        )
    parts += _time_axis(series, size, scale)
    parts += _gaps(series, size, scale)
    # The widest first, so that a narrower line on the same values is seen on it.
    for line in sorted(series.lines, key=lambda one: -one.width):
        parts += _draw_line(line, series.times, scale)
    parts += _tooltips(series, size, scale)
    return "".join((*parts, "</svg>"))


class _Scale:
    """Where times and values are in a drawing."""

    def __init__(self, series: Series, size: Size, ticks: Sequence[float]) -> None:
        longest = max(len(series.shown(tick)) for tick in ticks)
        self.left = math.ceil(12 + _TEXT_WIDTH * longest)
        self._inner = size.width - self.left - _RIGHT
        self._height = size.height - _TOP - _BOTTOM
        self._first = series.times[0]
        self.seconds = (series.times[-1] - series.times[0]).total_seconds()
        self._top = ticks[-1]

    def x(self, time: datetime) -> float:
        if not self.seconds:
            return self.left + self._inner / 2
        share = (time - self._first).total_seconds() / self.seconds
        return round(self.left + self._inner * min(1.0, max(0.0, share)), 1)

    def y(self, value: float) -> float:
        return round(_TOP + self._height * (1 - value / self._top), 1)

    def width(self, time: timedelta) -> float:
        return max(1.0, self._inner * time.total_seconds() / self.seconds) if self.seconds else float(self._inner)


def value_ticks(top: float, unit: str) -> list[float]:
    """Return up to six round values from 0 to the first that is not below ``top``."""
    step = _value_step((top or 1) / 5, unit)
    count = max(1, math.ceil((top or 1) / step - 1e-9))
    return [round(step * place, 12) for place in range(count + 1)]


def _value_step(least: float, unit: str) -> float:
    if unit == "seconds" and least > 0.5:
        longest = _DURATION_STEPS[-1]
        fitting = next((one for one in _DURATION_STEPS if one >= least), None)
        return float(fitting) if fitting else _decimal_step(least / longest) * longest
    step = _decimal_step(least)
    return max(1.0, step) if unit == "count" else step


def _decimal_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return float(next(one * power for one in (1, 2, 5, 10) if one * power >= least * 0.999999))


def time_ticks(first: datetime, last: datetime, most: int) -> list[datetime]:
    """Return round times: full minutes, quarters of an hour, hours or days, whatever gives at most ``most``."""
    seconds = (last - first).total_seconds()
    step = timedelta(seconds=next((one for one in _TIME_STEPS if seconds / one < most), _TIME_STEPS[-1]))
    tick = floor_time(first, step)
    found = []
    while tick <= last:
        if tick >= first:
            found.append(tick)
        tick += step
    return found or [first]


def _time_axis(series: Series, size: Size, scale: _Scale) -> Iterator[str]:
    """Return labels of round times. A midnight is shown as its date, and so is the first label if there are several."""
    first, last = series.times[0], series.times[-1]
    ticks = time_ticks(first, last, size.time_ticks)
    several_days = first.date() != last.date()
    clock = "%H:%M:%S" if any(tick.second for tick in ticks) else "%H:%M"
    for tick in ticks:
        is_midnight = several_days and (tick.hour, tick.minute, tick.second) == (0, 0, 0)
        text, x = tick.strftime("%b %d" if is_midnight else clock), scale.x(tick)
        half = _TEXT_WIDTH * len(text) / 2
        anchor = "start" if x - half < scale.left - 8 else "end" if x + half > size.width else "middle"
        bottom = size.height - _BOTTOM
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text class="tick" x="{x}" y="{size.height - 8}" text-anchor="{anchor}">{text}</text>'


def _gaps(series: Series, size: Size, scale: _Scale) -> Iterator[str]:
    for start, end in series.gaps:
        x, until = scale.x(start), scale.x(end)
        text = escape(f"Entries are missing from {moment(start)} to {moment(end)}")
        box = f'x="{x}" y="{_TOP}" width="{max(2.0, until - x):.1f}" height="{size.height - _TOP - _BOTTOM}"'
        yield f'<rect class="gap" {box}><title>{text}</title></rect>'


def _draw_line(line: Line, times: Sequence[datetime], scale: _Scale) -> Iterator[str]:
    """Return a path for each run of values. A single value is a dot, or it would be invisible."""
    run: list[str] = []
    for place, value in enumerate((*line.values, None)):
        if value is not None:
            run.append(f"{scale.x(times[place])},{scale.y(value)}")
            continue
        if len(run) == 1:
            x, y = run[0].split(",")
            yield f'<circle class="dot c{line.color}" cx="{x}" cy="{y}" r="{max(2.5, line.width):g}"/>'
        elif run:
            style = f'stroke-width="{line.width:g}"' + (' stroke-opacity=".45"' if line.width > 3 else "")
            yield f'<polyline class="line c{line.color}" {style} points="{" ".join(run)}"/>'
        run = []


def _tooltips(series: Series, size: Size, scale: _Scale) -> Iterator[str]:
    """Return an invisible column per bucket, with a title that browsers show under the pointer."""
    width = scale.width(series.step)
    for place, time in enumerate(series.times):
        values = [
            f"{line.name}: {series.shown(value)}" for line in series.lines if (value := line.values[place]) is not None
        ]
        if values:
            text = escape("\n".join((moment(time), *values)))
            x = round(scale.x(time) - width / 2, 1)
            box = f'x="{x}" y="{_TOP}" width="{width:.1f}" height="{size.height - _TOP - _BOTTOM}"'
            yield f'<rect class="hit" {box}><title>{text}</title></rect>'


def bar(share: float, color: int = 1) -> str:
    """Return a bar for the cell of a table."""
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/>'
        f'<rect class="fill c{color}" width="{min(1.0, share) * 100:.1f}" height="8"/>'
        "</svg>"
    )


def amount(value: float | None) -> str:
    """Return a number with as many digits as are of use: a rate below 1 has two, however small it is."""
    if value is None:
        return NOTHING
    if 0 < abs(value) < 1:
        return f"{value:.{1 - math.floor(math.log10(abs(value)))}f}".rstrip("0").rstrip(".")
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
    if share == 0 or share >= 0.1:
        return f"{share * 100:.3g} %"
    return f"{share * 100:.2g} %"


def moment(time: datetime | None) -> str:
    """Return a time with its zone."""
    return NOTHING if time is None else time.strftime("%Y-%m-%d %H:%M:%S %Z")


_FORMATS: dict[str, Callable[[float | None], str]] = {
    "count": amount,
    "average": amount,
    "seconds": duration,
    "share": percent,
}
