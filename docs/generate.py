"""Generates the reference pages and the diagrams, so that they cannot contradict the code.

    python -m docs.generate            write docs/reference/*.md, docs/decisions/index.md, the lists in
                                       docs/how-to/restrict-access.md, the diagrams, and the figures of the README
    python -m docs.generate --check    exit with 1 if a page is out of date; the contract, which git does not have, is
                                       not checked

The meaning of an option, a key or an error is written where it is defined. What only the reader of a page needs (which
options belong together, when an event is emitted) is in a table of the page's module. A missing row is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.decision_index import INDEX, decision_index
from docs.diagrams import DIAGRAMS
from docs.figures import README, performance_plot, readme
from docs.reference.api import api_page
from docs.reference.cli import cli_page
from docs.reference.contract import contract_page
from docs.reference.errors import errors_page
from docs.reference.events import events_page
from docs.reference.keys import keys_page
from docs.reference.options import options_page
from docs.reference.permissions import HOW_TO, RECIPE, acl_recipe_page, restrict_access_page
from docs.reference.spark_options import spark_options_page

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "options.md": options_page,
    "spark-options.md": spark_options_page,
    "keys.md": keys_page,
    "events.md": events_page,
    "errors.md": errors_page,
    "api.md": api_page,
    "cli.md": cli_page,
    "contract.md": contract_page,
}
# 17,000 words that nearly every change touches: git ignores the page.
IGNORED = REFERENCE / "contract.md"


# What is generated elsewhere: whole pictures, and parts of pages that are written by hand.
ELSEWHERE: dict[Path, Callable[[], str]] = {
    HOW_TO: restrict_access_page,
    RECIPE: acl_recipe_page,
    README: readme,
    INDEX: decision_index,
    DOCS / "explanation" / "performance.svg": performance_plot,
    **{DOCS / "explanation" / "diagrams" / name: draw for name, draw in DIAGRAMS.items()},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files that are out of date. With --check, only name them and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    stale = outdated()
    if check:
        stale.pop(IGNORED, None)
    for path, text in stale.items():
        name = f"docs/reference/{path.name}" if path.parent == REFERENCE else path.relative_to(DOCS.parent).as_posix()
        if check:
            print(f"{name} is out of date: run python -m docs.generate", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"{name} written")
    return 1 if stale and check else 0


def outdated() -> dict[Path, str]:
    """The files that are out of date, with their new text."""
    makers = {REFERENCE / name: make for name, make in PAGES.items()} | ELSEWHERE
    made = {path: make() for path, make in makers.items()}
    return {path: text for path, text in made.items() if _text_of(path) != text}


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
