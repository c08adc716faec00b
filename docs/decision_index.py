"""docs/decisions/index.md: every decision with its status, from the pages themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs.reference.markdown import OutOfSync, page, prose, table

DECISIONS = Path(__file__).parent / "decisions"
INDEX = DECISIONS / "index.md"
_STATUS = re.compile(r"^> Status: (?P<status>accepted|superseded by \[decision \d+\]\([\w.-]+\))", re.MULTILINE)
# A page has one decision as its title, or several as its sections.
_DECISION = re.compile(r"^##? (?P<number>\d+)\. (?P<title>.+)$", re.MULTILINE)


def decision_index() -> str:
    rows = sorted(row for path in DECISIONS.glob("*.md") if path != INDEX for row in _rows(path))
    return page(
        "Decisions",
        "the pages beside it",
        prose("""
            Why the larger choices were made, with what was rejected. A decision keeps its number. One that no longer
            holds stays, and its status names the one that superseded it.
        """),
        table(("", "decision", "status"), ((str(number), link, status) for number, link, status in rows)),
    )


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    text = path.read_text(encoding="utf-8")
    status = _STATUS.search(text)
    if status is None:
        raise OutOfSync(f"{path.name} has no line such as: > Status: accepted")
    for found in _DECISION.finditer(text):
        title = found["title"]
        anchor = "" if found[0].startswith("# ") else f"#{found['number']}-{_anchor(title)}"
        yield int(found["number"]), f"[{title}]({path.name}{anchor})", status["status"]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-")
