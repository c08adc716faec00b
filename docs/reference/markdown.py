"""How a page is put together: paragraphs, tables, and the check that a table leaves nothing out."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any


class OutOfStep(Exception):
    """The code has something that a table of ours leaves out, or the other way round: mend the table."""


def page(title: str, source: str, *parts: str) -> str:
    """A page says in its first line what it is made from; browsers do not show it."""
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
    """An option's half-sentence as a whole one; a name at its beginning keeps its small letter."""
    text = text.strip()
    return (text if text.startswith("`") else text[0].upper() + text[1:]) + ("" if text.endswith((".", "…")) else ".")


def doc(thing: Any) -> str:
    """A docstring as Markdown."""
    return (inspect.getdoc(thing) or "").replace("``", "`")


def prose(text: str) -> str:
    """Paragraphs of this file, at the width of the page."""
    paragraphs = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(one.split()), 118, break_on_hyphens=False) for one in paragraphs)


def in_step(what: str, told: Iterable[str], there: Iterable[str]) -> None:
    told, there = list(told), list(there)
    if difference := set(told) ^ set(there):
        raise OutOfStep(f"{what}: {sorted(difference)} stand in one place only")
    if len(told) != len(set(told)):
        raise OutOfStep(f"{what}: something stands there twice")
