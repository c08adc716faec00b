"""Draws bars and curves as SVG."""

from collections.abc import Sequence
from html import escape
from math import log10

_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#667}.title{font-size:14px;font-weight:600}.grid{stroke:#8884}"
    ".bar{fill:#8899aa}.ours{fill:#2874c8}.one{stroke:#d33;stroke-dasharray:4 4}polyline{fill:none;stroke-width:2}"
)
_COLOURS = ("#2874c8", "#e08a1e", "#3a9d5d", "#b0489b", "#777")


def bars(title: str, values: dict[str, float], ours: str, *, form: str = "{:.2f}", line: float | None = None) -> str:
    """Horizontal bars, the largest first, with ours in another colour and a line at one value."""
    left, wide, tall = 180, 760, 18
    scale = (wide - left - 70) / max([*values.values(), line or 0.0])
    height = 34 + tall * len(values)
    parts = [_head(title, wide, height), f'<text class="title" x="{left}" y="18">{escape(title)}</text>']
    for number, (name, value) in enumerate(sorted(values.items(), key=lambda one: -one[1])):
        y, style = 28 + tall * number, "ours" if name == ours else "bar"
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect class="{style}" x="{left}" y="{y}" width="{max(value * scale, 1):.1f}" height="{tall - 4}"/>'
        )
        parts.append(f'<text x="{left + value * scale + 6:.1f}" y="{y + 12}">{form.format(value)}</text>')
    if line is not None:
        x = left + line * scale
        parts.append(f'<line class="one" x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{height - 4}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def curves(title: str, across: str, up: str, series: dict[str, Sequence[tuple[float, float]]]) -> str:
    """Lines over a logarithmic axis, from zero up."""
    left, top, wide, high = 60, 50, 640, 220
    xs = sorted({x for line in series.values() for x, _ in line})
    most = max(y for line in series.values() for _, y in line) or 1.0
    low, span = log10(xs[0]), (log10(xs[-1]) - log10(xs[0])) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (log10(x) - low) / span * wide, top + high - y / (most * 1.1) * high

    parts = [
        _head(title, left + wide + 40, top + high + 50),
        f'<text class="title" x="{left}" y="18">{escape(title)}</text>',
    ]
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
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(title: str, wide: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {height}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
