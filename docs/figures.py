"""Takes figures from the pages that the benchmarks write: a table for the README, and a plot of relative speeds."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from docs.reference.markdown import OutOfSync, table

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
PERFORMANCE = DOCS / "explanation" / "performance.md"
LEAGUE = DOCS / "explanation" / "league.md"
# What the README shows of the league: the section, its column, and what the README calls it.
_SHOWN = (
    ("Speed", "publish", "publish"),
    ("Speed", "deduplicated", "deduplicated"),
    ("Speed", "consume", "consume"),
    ("Delay", "idle, p50", "delay, ms"),
    ("Messages lost", "lost", "lost"),
    ("Messages lost", "stuck", "stuck"),
    ("Messages lost", "doubled", "doubled"),
)
_BLOCK = re.compile(r"(?<=<!-- begin figures: python -m docs\.generate -->\n).*?(?=<!-- end figures -->)", re.DOTALL)
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#667}.title{font-size:14px;font-weight:600}.grid{stroke:#8884}"
    ".ours{fill:#2874c8}.plain{fill:#2874c888}.streams{fill:#e08a1e}.one{stroke:#d33;stroke-dasharray:4 4}"
)
_SERIES = {"with hiredis": "ours", "without": "plain", "Streams": "streams"}


def readme() -> str:
    """The README with the current figures of the league."""
    text = README.read_text(encoding="utf-8")
    sections = {section: _first_table(_section(LEAGUE, section)) for section, _, _ in _SHOWN}
    try:
        members = sections["Speed"]
        shown = [(one, *(sections[section][one][column] for section, column, _ in _SHOWN)) for one in members]
    except KeyError as missing:
        raise OutOfSync(f"{LEAGUE.name} has no {missing}") from missing
    head = ("", *(title for _, _, title in _SHOWN))
    made, count = _BLOCK.subn(lambda _: f"\n{table(head, shown)}\n\n", text)
    if count != 1:
        raise OutOfSync("README.md needs one place for the figures")
    return made


def relative_speeds() -> dict[str, dict[str, str]]:
    """The rows of the first table of the page, by name and column."""
    return _first_table(PERFORMANCE.read_text(encoding="utf-8"))


def _section(page: Path, title: str) -> str:
    """The part of a page whose title begins like this."""
    for part in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        if part.startswith(title):
            return part
    raise OutOfSync(f"{page.name} has no section {title!r}")


def _first_table(text: str) -> dict[str, dict[str, str]]:
    """The rows of the first table before the next section, by name and column."""
    lines = [line for line in text.split("\n## ")[0].splitlines() if line[:1] == "|"]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {cells[0]: dict(zip(head[1:], cells[1:], strict=True)) for cells in rows}


def performance_plot() -> str:
    """Bars: the speed relative to raw redis-py."""
    rows, left, wide, tall = relative_speeds(), 170, 960, 14
    found = [float(cell.split()[0]) for row in rows.values() for name, cell in row.items() if name in _SERIES and cell]
    scale = (wide - left - 60) / max([*found, 1.0])
    height = 60 + len(rows) * (tall * len(_SERIES) + 12)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {height}" role="img">',
        f"<title>Speed relative to raw redis-py</title><style>{_STYLE}</style>",
        f'<text class="title" x="{left}" y="18">Speed relative to raw redis-py (1.00 is as fast)</text>',
        *(
            f'<text x="{left + 170 * place}" y="36" class="{style}">{escape(name)}</text>'
            for place, (name, style) in enumerate(_SERIES.items())
        ),
    ]
    for number, (name, row) in enumerate(rows.items()):
        y = 48 + number * (tall * len(_SERIES) + 12)
        parts.append(f'<text x="{left - 10}" y="{y + tall * 1.8:g}" text-anchor="end">{escape(name)}</text>')
        for place, (column, style) in enumerate(_SERIES.items()):
            if cell := row.get(column):
                speed, top = float(cell.split()[0]), y + tall * place
                size = f'width="{speed * scale:.1f}" height="{tall - 2}"'
                parts.append(f'<rect class="{style}" x="{left}" y="{top}" {size}/>')
                parts.append(f'<text x="{left + speed * scale + 6:.1f}" y="{top + tall - 3}">{speed:.2f}</text>')
    line = f'x1="{left + scale:.1f}" x2="{left + scale:.1f}" y1="44" y2="{height - 8}"'
    return "\n".join([*parts, f'<line class="one" {line}/>', "</svg>", ""])
