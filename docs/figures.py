"""Takes figures from the pages that the benchmarks write: a table for the README, and a plot of relative speeds."""

from __future__ import annotations

import re
from pathlib import Path

from docs.plots import OURS, OURS_PALE, STREAMS, Bar, bars
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
# What a page has since it was measured with many callers at a time; its columns go behind those of the speed.
_CALLERS = (
    ("Many callers", "publish", "publishes/s, 100 callers"),
    ("Many callers", "handlers of 10 ms", "handlers of 10 ms/s, 100 at a time"),
)
# The rows that matter for a choice: the yardstick, Redis without a library, and two task queues that most people know.
_MEMBERS = ("**this library**", "raw redis-py", "Streams", "celery", "dramatiq")
_BLOCK = re.compile(r"(?<=<!-- begin figures: python -m docs\.generate -->\n).*?(?=<!-- end figures -->)", re.DOTALL)
_SERIES = {"with hiredis": OURS, "without": OURS_PALE, "Streams": STREAMS}


def readme() -> str:
    """The README with the current figures of the league."""
    text = README.read_text(encoding="utf-8")
    has_callers = "\n## Many callers\n" in LEAGUE.read_text(encoding="utf-8")
    columns = (*_SHOWN[:3], *(_CALLERS if has_callers else ()), *_SHOWN[3:])
    sections = {section: _first_table(_section(LEAGUE, section)) for section, _, _ in columns}
    try:
        shown = [(one, *(sections[section][one][column] for section, column, _ in columns)) for one in _MEMBERS]
    except KeyError as missing:
        raise OutOfSync(f"{LEAGUE.name} has no {missing}") from missing
    head = ("", *(title for _, _, title in columns))
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
    shown = {
        name: [
            Bar(float(row[column].split()[0]), colour) if row.get(column) else None
            for column, colour in _SERIES.items()
        ]
        for name, row in relative_speeds().items()
    }
    return bars("Speed relative to raw redis-py (1.00 is as fast)", shown, legend=_SERIES, line=1.0)
