"""The parts of a generated page: paragraphs, tables, and the check that a table is complete."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any


class OutOfSync(Exception):
    """The code and a table of the generator do not name the same things. Correct the table."""


def page(title: str, source: str, *parts: str) -> str:
    """A whole page. Its first line, which browsers do not show, says what it is generated from."""
    made = f"<!-- Made by `python -m docs.generate` from {source}. Change it there, not here. -->"
    return "\n\n".join([made, f"# {title}", *(part.strip("\n") for part in parts)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`"


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop. Code at its beginning keeps its small letter."""
    text = text.strip()
    return (text if text.startswith("`") else text[0].upper() + text[1:]) + ("" if text.endswith((".", "…")) else ".")


def doc(thing: Any) -> str:
    """A docstring as Markdown."""
    return (inspect.getdoc(thing) or "").replace("``", "`")


_SECTIONS = ("Args:", "Returns:", "Raises:")


def doc_with_sections(thing: Any) -> str:
    """A docstring as Markdown, with its Args, Returns and Raises as lists."""
    parts = []
    for paragraph in doc(thing).split("\n\n"):
        first, *rows = paragraph.split("\n")
        if first not in _SECTIONS:
            parts.append(paragraph)
            continue
        entries = re.split(r"\n {4}(?! )", "\n" + "\n".join(rows))[1:]
        named = (one.partition(": ") for one in entries)
        lines = (f"- {_codes(names)}: {' '.join(text.split())}" for names, _, text in named)
        parts.append("\n".join((f"{first[:-1]}:", "", *lines)))
    return "\n\n".join(parts)


def _codes(names: str) -> str:
    return ", ".join(code(name) for name in names.split(", "))


def prose(text: str) -> str:
    """Paragraphs of Python source, wrapped to the width of a page."""
    paragraphs = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(one.split()), 118, break_on_hyphens=False) for one in paragraphs)


def check_complete(what: str, described: Iterable[str], existing: Iterable[str]) -> None:
    """Raise `OutOfSync` unless every existing name is described exactly once, and no other."""
    described, existing = list(described), list(existing)
    if difference := set(described) ^ set(existing):
        raise OutOfSync(f"{what}: {sorted(difference)} are only in the code or only in the table")
    if len(described) != len(set(described)):
        raise OutOfSync(f"{what}: a name is in the table twice")
