"""A report says what a plain loop over the same journal says, never more than is known, on a page that stands alone."""

import json
import re
import time
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from redis_message_queue.errors import ArchiveError, ConfigurationError
from redis_message_queue.spark.jobs.archive import ArchiveOptions
from redis_message_queue.spark.jobs.figures import Figures, balance, jain
from redis_message_queue.spark.jobs.ledger import Depth, Manifest, Segment
from redis_message_queue.spark.jobs.page import page
from redis_message_queue.spark.jobs.plots import Line, bucket_size, duration, lines
from redis_message_queue.spark.jobs.report import ReportOptions, figures_of, report
from tests.spark import oracle
from tests.spark.archivist import archive_plainly
from tests.spark.journals import Teller, fill_queue, write_journal


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"))


def manifest(*, missing=(), depth: Depth | None = None) -> Manifest:
    return Manifest("orders", 1, (Segment("p", "2026-09-21", 1, 10, "1-0", "9-0", 10, tuple(missing)),), (), depth)


# With Spark


def test_its_figures_are_those_of_a_plain_loop_and_every_message_is_accounted_for(
    spark, client, options, tmp_path, monkeypatch
):
    """Also where the machine's own time zone is not the server's."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        story = Teller(21).story(400)
        events = write_journal(client, options, story)
        fill_queue(client, options, story)
        archive_plainly(options)
        heard = []
        result = report(
            spark, ReportOptions(path=options.path, queue="orders", output=str(tmp_path / "out")), heard.append
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    assert result.verdict == "balanced", result.because
    assert [one.step for one in heard][-1] == "written"
    told = json.loads(Path(result.json).read_text())
    for row in told["tables"]["minutes"]:
        row["minute"] = datetime.fromisoformat(row["minute"])
    oracle.agrees(Figures("orders", told["summary"], told["tables"]), events)
    minutes = pq.read_table(result.tables["minutes"]).to_pylist()
    assert {row["minute"] for row in minutes} == oracle.figures(events)["minutes"].keys()
    text = Path(result.page).read_text()
    assert "<b>balanced</b>" in text
    stands_alone(text)
    json.dumps(result.as_dict())


def test_with_gaps_it_counts_what_is_there_and_says_what_is_unknown(spark, client, options):
    story = Teller(22).story(150)
    events = write_journal(client, options, story, lost=(range(30, 60), range(200, 203)))
    fill_queue(client, options, story)
    archive_plainly(options)
    found = figures_of(spark, options.path, "orders")
    oracle.agrees(found, events)
    assert found.summary["conservation"]["verdict"] == "unknown"
    assert found.summary["conservation"]["missing_serials"] == 33
    assert "33 journal entries were trimmed" in page(found, datetime.now(UTC))


def test_a_queue_that_was_not_archived_is_named_with_those_that_were(spark, client, options, tmp_path):
    write_journal(client, options, Teller(1).story(5))
    archive_plainly(options)
    with pytest.raises(ArchiveError, match=r"no archive of the queue 'invoices' at .*; archived there: 'orders'"):
        report(spark, ReportOptions(path=options.path, queue="invoices", output=str(tmp_path)))


# The verdict


def verdict(depth: int | None = 0, missing=(), **given: int) -> str:
    counted = {"entered": 10, "open_messages": 0, "unseen": 0, "odd": 0, "purged": 0} | given
    held = None if depth is None else Depth(10, depth, 0, 0)
    return balance(left={}, manifest=manifest(missing=missing, depth=held), **counted)["verdict"]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "balanced"),
        ({"open_messages": 3, "depth": 3}, "balanced"),
        ({"open_messages": 3, "purged": 2, "depth": 1}, "balanced"),
        ({"open_messages": 3, "depth": 2}, "unbalanced"),
        ({"open_messages": 0, "depth": 1}, "unknown"),
        ({"purged": 1}, "unknown"),
        ({"odd": 1}, "unbalanced"),
        ({"unseen": 1}, "unknown"),
        ({"open_messages": 3, "depth": None}, "unknown"),
        ({"depth": None}, "balanced"),
        ({"missing": ((3, 1),)}, "unknown"),
        ({"missing": ((3, 1),), "open_messages": 3, "depth": 3}, "unknown"),
        ({"missing": ((3, 1),), "odd": 1}, "unknown"),
    ],
)
def test_the_verdict_is_balanced_only_where_nothing_is_missing_and_all_adds_up(given, word):
    assert verdict(**given) == word


def test_a_depth_of_another_moment_is_not_compared():
    old = manifest(depth=Depth(9, 0, 0, 0))
    told = balance(entered=3, left={}, open_messages=3, unseen=0, odd=0, purged=0, manifest=old)
    assert (told["verdict"], told["held"]) == ("unknown", None)


@pytest.mark.parametrize(("served", "index"), [([5, 5, 5], 1.0), ([9, 0, 0], 1 / 3), ([], None), ([0, 0], None)])
def test_fairness_is_one_for_equals_and_one_nth_for_a_monopoly(served, index):
    assert jain(served) == pytest.approx(index)


# The page


class Reader(HTMLParser):
    """Sees that every element that was opened is closed, in order."""

    VOID = frozenset({"meta", "line", "circle", "polyline", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in self.VOID or (tag == "rect" and not self.get_starttag_text().endswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def stands_alone(text: str) -> None:
    """Nothing is fetched and nothing runs."""
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert not reader.tags & {"script", "link", "img", "iframe", "object"}
    assert not reader.attributes & {"src", "href", "onclick", "onload"}
    assert "url(" not in text
    assert not re.search(r"https?:", text)
    assert "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text


HOSTILE = """<script>alert('x')</script><img src=x onerror="alert(1)">"""


def small_figures(**changed) -> Figures:
    at = datetime(2026, 9, 21, 10, tzinfo=UTC)
    counts = dict.fromkeys(
        ("published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped"), 1
    )
    spread = {f"{name}_p{one}": None for name in ("waiting", "processing") for one in (50, 95, 99)}
    conservation = balance(
        entered=1, left={"acked": 1}, open_messages=0, unseen=0, odd=0, purged=0, manifest=manifest()
    )
    summary = (
        counts
        | spread
        | {
            "entries": 5,
            "redriven": 0,
            "reclaimed": 0,
            "redelivered": 0,
            "first_at": at,
            "last_at": at,
            "duplicate_ratio": None,
            "redelivery_ratio": 0.5,
            "fairness": None,
            "conservation": conservation,
        }
    )
    tables = {
        "minutes": [counts | spread | {"minute": at, "removed": 0, "backlog": 0}],
        "tenants": [counts | spread | {"tenant": HOSTILE, "share": 1.0}],
        "failures": [{"error_type": HOSTILE, "failed": 1, "retried": 0, "dead": 0, "total": 1, "messages": 1}],
        "dead_letters": [
            {"error_type": HOSTILE, "reason": HOSTILE, "letters": 1, "tenants": 1, "newest_id": HOSTILE}
            | {"first_at": at, "last_at": at}
        ],
        "conservation": conservation["accounts"],
        "missing": [],
    }
    return Figures("a <b> & c", summary, tables | changed)


def test_names_from_outside_stay_text():
    text = page(small_figures(), datetime.now(UTC))
    stands_alone(text)
    assert text.count("&lt;script&gt;alert") == 5
    assert "<img" not in text
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in text


def test_a_page_of_a_single_minute_has_its_plots():
    assert page(small_figures(), datetime.now(UTC)).count("<svg viewBox") == 4


def test_a_year_fits_into_a_plot():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    assert bucket_size(at, at, minute) == 1
    assert bucket_size(at, at + timedelta(days=1), minute) == 10
    assert bucket_size(at, at + timedelta(days=364), minute) == 10080
    assert bucket_size(at, at + timedelta(seconds=15), second) == 1
    assert bucket_size(at, at + timedelta(seconds=599), second) == 5


def test_a_value_between_two_gaps_is_a_dot_and_not_invisible():
    at = [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in range(5)]
    drawn = lines("x", at, [Line("p", 1, [None, 3, None, 1, 2])], "count")
    assert drawn.count("<circle") == 1
    assert drawn.count("<polyline") == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0"),
        (0.0000421, "42 µs"),
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (119.4, "119 s"),
        (7265, "2 h 1 min"),
        (86400, "1 d"),
    ],
)
def test_a_duration_is_told_in_a_handy_unit(seconds, text):
    assert duration(seconds) == text


def test_options_that_cannot_work_are_refused():
    with pytest.raises(ConfigurationError, match="output must not be empty"):
        ReportOptions(path="a", queue="b", output="")
