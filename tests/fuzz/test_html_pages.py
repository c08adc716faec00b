"""Nothing reaches a page of HTML unescaped, whatever queues, tenants and errors are called.

The structure of a page, its elements and the names of their attributes, must not depend on such a text. A browser that
reads the page finds the text again as it was.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from redis_message_queue.asyncio import RedisMessageQueue
from redis_message_queue.dashboard import Dashboard
from redis_message_queue.dashboard.history import History, _step
from redis_message_queue.dashboard.search import Found
from redis_message_queue.dashboard.text import lines
from redis_message_queue.dashboard.watch import QueueWatch, Watch
from redis_message_queue.spark.job_options import Window
from redis_message_queue.spark.jobs import page as pages
from redis_message_queue.spark.jobs.page import render_overview, render_page
from redis_message_queue.spark.jobs.report import directory_of
from redis_message_queue.values.messages import MessageRecord, Schedule, TraceEntry
from redis_message_queue.values.wording import one_line
from tests.fuzz.effort import examples
from tests.pipeline.test_report import small_figures

AT = datetime(2026, 9, 21, 10, tzinfo=UTC)
# What ends a text, an attribute, an element or a comment, begins a script, or is a template.
FRAGMENTS = (
    *(
        "<",
        ">",
        '"',
        "'",
        "&",
        "`",
        "=",
        "/",
        " ",
        "\n",
        "\x00",
        "\x1b[31m",
        "\u202e",
        "&lt;",
        "&#60;",
        "{{7*7}}",
        "{%",
    ),
    *("</title>", "</style>", "</svg>", "<!--", "-->", "<![CDATA[", "]]>", "<script>", "</script>", "<img src=x>"),
    *(" onload=alert(1) ", "javascript:alert(1)", "<a href=x>", "url(x)", "\u2028", "\ufeff"),
)
hostile = st.lists(
    st.one_of(st.sampled_from(FRAGMENTS), st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)),
    min_size=1,
    max_size=6,
).map("".join)


class Shape(HTMLParser):
    """What a browser makes of a page: its elements, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))
        self.texts += [value for _, value in attrs if value]

    def handle_endtag(self, tag: str) -> None:
        self.elements.append(("/", tag))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", data))

    def unknown_decl(self, data: str) -> None:
        self.elements.append(("declaration", data))

    def handle_pi(self, data: str) -> None:
        self.elements.append(("instruction", data))

    def says(self, text: str) -> bool:
        return any(text in one for one in self.texts) or text in "".join(self.texts)


def report_of(text: str) -> str:
    return render_page(small_figures(text, text), AT)


def overview_of(text: str) -> str:
    figures: dict[str, Any] = small_figures(text, text).summary
    row = figures | {"queue": text, "directory": directory_of(text), "verdict": "unbalanced", "because": text}
    return render_overview([row], Window(), AT)


def watch_of(name: str) -> Watch:
    """A partition of a queue of this name, which nobody has looked at."""
    queue: Any = RedisMessageQueue("q", client=redis.asyncio.Redis(), partitions=2)
    part: Watch = QueueWatch(name, queue).parts[1]
    return part


@cache
def dashboard() -> Dashboard:
    """One for all pages, which reads each template once."""
    return Dashboard(redis.asyncio.Redis(), allow_changes=True)


def dashboard_page(template: str, **values: Any) -> str:
    scope = {"type": "http", "root_path": "", "headers": [], "method": "GET", "path": "/", "query_string": b""}
    return dashboard()._text(Request(scope), template, **values)


def message_of(text: str) -> str:
    """Also what others wrote to the journal, and a payload that may be JSON."""
    fields: dict[str, Any] = dict.fromkeys(
        ("payload", "tenant", "reason", "error_type", "error", "traceback", "replay_of"), text
    )
    record = MessageRecord(**fields, headers={"name": text}, published_at=AT)
    entry = TraceEntry(event=text, at=AT, consumer=text, details={"of": text, "reason": text, "unknown": text})
    steps = [_step(entry), _step(replace(entry, event="failed", details={"error_type": text, "count": text}))]
    return dashboard_page(
        "message.html",
        watch=watch_of(text),
        part=None,
        id="0" * 32,
        source="failed",
        record=record,
        lease=None,
        history=History(steps, ended_as=text),
        views=[("Text", lines(text))],
        why=None,
    )


def waiting_message_of(text: str) -> str:
    """With the reason why it waits, which names tenants and workers."""
    record = MessageRecord(payload=text, tenant=text, published_at=AT)
    where: dict[str, Any] = {"watch": watch_of(text), "part": None, "id": "0" * 32, "source": "pending"}
    details: dict[str, Any] = {"record": record, "lease": None, "history": History([]), "views": []}
    return dashboard_page("message.html", why=f"it waits behind {text}", **where, **details)


def schedules_of(text: str) -> str:
    fields: dict[str, Any] = dict.fromkeys(("name", "cron", "timezone", "payload", "tenant", "error"), text)
    return dashboard_page("schedules.html", watch=watch_of(text), now=None, schedules=[Schedule(**fields)])


def messages_of(text: str) -> str:
    record = MessageRecord(
        payload=text, id="0" * 32, tenant=text, reason=text, error_type=text, error=text, traceback=text
    )
    shown = {"source": "failed", "tenant": text, "problem": text, "q": text, "where": text}
    found = Found([record], searched=1, is_all=True)
    return dashboard_page(
        "messages.html", watch=watch_of(text), found=found, limit=50, more=200, leases={}, most_ids=1, **shown
    )


@pytest.mark.parametrize("page", [report_of, overview_of])
def test_a_text_from_outside_changes_no_element(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_environment", cache(pages._environment))  # which compiles each template once
    usual = Shape(page("plain"))

    @examples(60, 3_000)
    @given(text=hostile)
    def search(text: str) -> None:
        shape = Shape(page(text))
        assert shape.elements == usual.elements
        assert shape.says(text)

    search()


@pytest.mark.parametrize("page", [message_of, waiting_message_of, schedules_of, messages_of])
def test_a_text_from_outside_changes_no_element_of_the_dashboard(page: Any) -> None:
    usual = Shape(page("plain"))

    @examples(30, 2_000)
    @given(text=hostile)
    def search(text: str) -> None:
        shape = Shape(page(text))
        assert shape.elements == usual.elements
        assert shape.says(one_line(text))  # control characters are made visible

    search()
