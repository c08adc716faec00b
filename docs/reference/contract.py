"""contract.md: what the library promises, and the tests that check it, from `contract.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from docs.reference.markdown import OutOfStep, code, page, prose, table

SOURCE = Path(__file__).with_suffix(".toml")
_BEYOND = "beyond the contract"


def promises() -> dict[str, dict[str, list[str]]]:
    """Topic, statement, and the tests that check it."""
    return {topic: rows for topic, rows in _read().items() if topic != _BEYOND}


def beyond() -> list[str]:
    """The tests of the contract that no statement needs."""
    return _read()[_BEYOND]["tests"]


def contract_page() -> str:
    told = promises()
    statements = [statement for rows in told.values() for statement in rows]
    if len(statements) != len(set(statements)):
        twice = sorted({one for one in statements if statements.count(one) > 1})
        raise OutOfStep(f"contract.toml says twice: {twice}")
    return page(
        "Contract",
        "`contract.toml`",
        prose(f"""
            What the library promises, in {len(statements)} statements, and the tests that check each of them. Those of
            `tests/contract` and `tests/lua` run on every server of a test run. A test that is renamed or removed, and
            one that nothing here speaks of, is noticed.
        """),
        "\n".join(f"- [{topic}](#{_anchor(topic)})" for topic in told),
        *(part for topic, rows in told.items() for part in (f"## {topic}", _topic(rows))),
    )


def _topic(rows: dict[str, list[str]]) -> str:
    return table(("statement", "checked by"), _rows(rows))


def _rows(rows: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    for statement, tests in rows.items():
        yield statement, "<br>".join(code(test) for test in tests)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _read() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))
