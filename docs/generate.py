"""Generates the reference pages from the code, so that they cannot contradict it.

    python -m docs.generate            write docs/reference/*.md, and the lists in docs/how-to/restrict-access.md
    python -m docs.generate --check    exit with 1 if a page is out of date

The meaning of an option, a key or an error is written where it is defined. What only the reader of a page needs (which
options belong together, when an event is emitted) is in a table of the page's module. A missing row is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.reference.api import api_page
from docs.reference.cli import cli_page
from docs.reference.contract import contract_page
from docs.reference.errors import errors_page
from docs.reference.events import events_page
from docs.reference.keys import keys_page
from docs.reference.options import options_page
from docs.reference.permissions import HOW_TO, restrict_access_page
from docs.reference.spark_options import spark_options_page

REFERENCE = Path(__file__).parent / "reference"
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages that are out of date. With --check, only name them and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    stale = outdated()
    for name, text in stale.items():
        folder = "how-to" if name == HOW_TO.name else "reference"
        if check:
            print(f"docs/{folder}/{name} is out of date: run python -m docs.generate", file=sys.stderr)
        else:
            (HOW_TO if name == HOW_TO.name else REFERENCE / name).write_text(text, encoding="utf-8")
            print(f"docs/{folder}/{name} written")
    return 1 if stale and check else 0


def outdated() -> dict[str, str]:
    """The pages that are out of date, with their new text."""
    made = {name: make() for name, make in PAGES.items()}
    stale = {name: text for name, text in made.items() if _text_of(REFERENCE / name) != text}
    rules = restrict_access_page()
    return stale if _text_of(HOW_TO) == rules else stale | {HOW_TO.name: rules}


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
