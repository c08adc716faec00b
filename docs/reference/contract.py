"""contract.md: what the library promises, and the tests that check it, from the `promise` markers of the tests."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from docs.reference.markdown import OutOfSync, code, page, prose, table

ROOT = Path(__file__).parents[2]
# In the order of the page. Each test module names one of them: pytestmark = pytest.mark.topic("Leases").
TOPICS = (
    "Names and keys",
    "Options",
    "Publishing",
    "Publishing many",
    "Group commit",
    "Receipts",
    "Payloads",
    "Headers",
    "Deduplication",
    "Backpressure",
    "Delays",
    "Schedules",
    "Message TTL",
    "Processing one message",
    "Callbacks as handlers",
    "Waiting for messages",
    "Batches",
    "The consumer loop",
    "Tasks",
    "Hand-off",
    "Leases",
    "Heartbeats",
    "Clocks",
    "Tracking lists",
    "Dead letters",
    "Retry policies",
    "What a handler decides",
    "Tenants",
    "Partitions",
    "Interrupts",
    "Pausing",
    "Cancelling a message",
    "Draining",
    "Cancellation",
    "Killed and interrupted consumers",
    "Retries of Redis calls",
    "Durability",
    "Cost and memory",
    "Events",
    "Errors",
    "Event loops",
    "State in Redis",
    "The registry of queues",
    "One message by its id",
    "Changes on a live queue",
    "Connections and clients",
    "Cluster",
    "Permissions",
    "Forks",
    "Gateways",
    "Journal",
    "Operator tools",
    "Command line",
    "Dashboard",
    "Metrics",
    "Tracing",
    "Streaming queries in Spark",
    "Data pipeline",
    "Testing",
)


class Promise(NamedTuple):
    """One marker: what a test checks."""

    topic: str
    statement: str
    test: str


def contract_page() -> str:
    promised = promises()
    return page(
        "Contract",
        "the `promise` markers of the tests",
        prose("""
            What the library promises, and the tests that check each statement. The tests in `tests/contract` and
            `tests/lua` run on every server of a test run.
        """),
        "\n".join(f"- [{topic}](#{_anchor(topic)})" for topic in promised),
        *(part for topic, rows in promised.items() for part in (f"## {topic}", _topic(rows))),
    )


def promises(tests: Path = ROOT / "tests") -> dict[str, dict[str, list[str]]]:
    """Topic, statement, and the tests that check it; a statement stands under the topic of most of its tests."""
    by_statement: dict[str, list[Promise]] = defaultdict(list)
    for promise in sorted(_markers(tests), key=lambda promise: TOPICS.index(promise.topic)):
        by_statement[promise.statement].append(promise)
    found: dict[str, dict[str, list[str]]] = {topic: {} for topic in TOPICS}
    for statement, checks in by_statement.items():
        [(topic, _)] = Counter(check.topic for check in checks).most_common(1)
        found[topic][statement] = [check.test for check in checks]
    return {topic: rows for topic, rows in found.items() if rows}


def _markers(tests: Path) -> Iterator[Promise]:
    """Read the sources: collecting all tests takes 20 seconds, this takes one."""
    for path in sorted(tests.rglob("test_*.py")):
        name, body = path.relative_to(tests.parent).as_posix(), ast.parse(path.read_text(encoding="utf-8")).body
        functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        promised = [(text, node.name) for node in functions for text in _texts("promise", node.decorator_list)]
        topics = _texts("topic", [node.value for node in body if isinstance(node, ast.Assign)])
        if promised and (len(topics) != 1 or topics[0] not in TOPICS):
            raise OutOfSync(f"{name} has the topics {topics}; it needs one of docs.reference.contract.TOPICS")
        yield from (Promise(topics[0], text, f"{name}::{function}") for text, function in promised)


def _texts(marker: str, marks: Iterable[ast.expr]) -> list[str]:
    """The texts of every `pytest.mark.<marker>("...")`, also of those in a list."""
    found: list[str] = []
    for mark in marks:
        match mark:
            case ast.List(elts=several):
                found += _texts(marker, several)
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="mark"), attr=name), args=[ast.Constant(str(text))]
            ):
                found += [text] if name == marker else []
    return found


def _topic(rows: dict[str, list[str]]) -> str:
    return table(("statement", "checked by"), _rows(rows))


def _rows(rows: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    for statement, tests in rows.items():
        yield statement, "<br>".join(code(test) for test in tests)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
