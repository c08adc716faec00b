"""A report says what a plain loop over the same journal says, never more than is known, on a page that stands alone."""

import json
import re
import time
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from redis_message_queue.errors import ArchiveError, ConfigurationError
from redis_message_queue.spark.jobs.archive import ArchiveOptions, journal_table
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.inventory import Held
from redis_message_queue.spark.jobs.page import render_page
from redis_message_queue.spark.jobs.plots import Line, bucket_size, draw_lines, duration
from redis_message_queue.spark.jobs.report import ReportOptions, report, statistics_of
from redis_message_queue.spark.jobs.statistics import JournalRange, ReportStatistics, _held, balance, jain
from tests.spark import expected_statistics
from tests.spark.journal_samples import MINUTE, START, JournalSample, fill_queue, stored, write_journal
from tests.spark.plain_archiver import archive_plainly

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"))


# With Spark


@pytest.mark.promise("The figures of a report equal those of a plain loop over the same journal.")
def test_its_figures_are_those_of_a_plain_loop_and_every_message_is_accounted_for(
    spark, client, options, tmp_path, monkeypatch
):
    """Also where the machine's own time zone is not the server's."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        story = JournalSample(21).story(400)
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
    expected_statistics.agrees(ReportStatistics("orders", told["summary"], told["tables"]), events)
    minutes = pq.read_table(result.tables["minutes"]).to_pylist()
    assert {row["minute"] for row in minutes} == expected_statistics.figures(events)["minutes"].keys()
    text = Path(result.page).read_text()
    assert "<b>balanced</b>" in text
    stands_alone(text)
    json.dumps(result.as_dict())


def test_with_gaps_it_counts_what_is_there_and_says_what_is_unknown(spark, client, options):
    story = JournalSample(22).story(150)
    events = write_journal(client, options, story, lost=(range(30, 60), range(200, 203)))
    fill_queue(client, options, story)
    archive_plainly(options)
    found = statistics_of(spark, options.path, "orders")
    expected_statistics.agrees(found, events)
    assert found.summary["conservation"]["verdict"] == "unknown"
    assert found.summary["conservation"]["missing_serials"] == 33
    assert "33 journal entries are not in the archive" in render_page(found, datetime.now(UTC))


@pytest.mark.promise("A message that is missing and one that another program added do not cancel out in a report.")
@pytest.mark.parametrize("foreign", [b"another program's", None])
def test_a_missing_message_and_a_foreign_one_do_not_cancel_out(spark, client, options, foreign):
    """The second is a message of ours that the journal knows nothing of."""
    story = JournalSample(23).story(200)
    write_journal(client, options, story)
    fill_queue(client, options, story)
    lost = story.pending[0]
    client.rpop(options.keys.pending)
    client.lpush(options.keys.pending, foreign or stored("0123456789abcdef" * 2))
    archive_plainly(options)
    conservation = statistics_of(spark, options.path, "orders").summary["conservation"]
    assert (conservation["verdict"], conservation["foreign"]) == ("unbalanced", 1)
    assert re.search(rf"1 messages that should be in the queue are not there .*{lost}", conservation["because"])


def test_what_a_flush_has_destroyed_is_told(spark, client, options):
    story = JournalSample(24).story(100)
    write_journal(client, options, story)
    fill_queue(client, options, story)
    archive_plainly(options)
    client.flushall()
    write_journal(client, options, JournalSample(25, start=START + 60 * MINUTE).story(0))
    archive_plainly(options)
    conservation = statistics_of(spark, options.path, "orders").summary["conservation"]
    lost = len(story.pending) + len(story.processing) + len(story.delayed)
    assert conservation["verdict"] == "unbalanced"
    assert f"{lost} messages were in the queue when its data was deleted" in conservation["because"]


def test_entries_that_were_deleted_from_the_archive_are_missing(spark, client, options):
    """As by repair(), which forgets files that are gone."""
    write_journal(client, options, JournalSample(26).story(100))
    archive_plainly(ArchiveOptions(url=options.url, queue="orders", path=options.path, partition_rows=60))
    table = journal_table(location_of(options.path))
    gone = max(table.files("orders"), key=lambda one: one.statistics["serial"][1])
    Path(table.location.uri, gone.path).unlink()
    table.open().repair()
    conservation = statistics_of(spark, options.path, "orders").summary["conservation"]
    assert (conservation["verdict"], conservation["missing_serials"]) == ("unknown", gone.rows)


def test_a_queue_that_was_not_archived_is_named_with_those_that_were(spark, client, options, tmp_path):
    write_journal(client, options, JournalSample(1).story(5))
    archive_plainly(options)
    with pytest.raises(ArchiveError, match=r"no archive of the queue 'invoices' at .*; archived there: 'orders'"):
        report(spark, ReportOptions(path=options.path, queue="invoices", output=str(tmp_path)))


# The verdict


def verdict(held: int | None = 0, **given: int) -> str:
    counted: dict[str, Any] = {"entered": 10, "open_messages": 0, "unseen": 0, "odd": 0, "purged": 0} | given
    return balance(left={}, held=held, **counted)["verdict"]


@pytest.mark.promise(
    "If entries are missing, or messages are older than the journal, a report says what is unknown instead of that it "
    "balances."
)
@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "balanced"),
        ({"open_messages": 3, "held": 3}, "balanced"),
        ({"open_messages": 3, "purged": 2, "held": 1}, "balanced"),
        ({"open_messages": 3, "held": 2}, "unbalanced"),
        ({"open_messages": 3, "held": 3, "foreign": 1}, "unbalanced"),
        ({"open_messages": 3, "held": 4, "foreign": 1}, "unknown"),
        ({"open_messages": 0, "held": 1}, "unknown"),
        ({"flushed": 1}, "unbalanced"),
        ({"repeated": 1}, "unbalanced"),
        ({"purged": 1}, "unknown"),
        ({"odd": 1}, "unbalanced"),
        ({"unseen": 1}, "unknown"),
        ({"open_messages": 3, "held": None}, "unknown"),
        ({"held": None}, "balanced"),
        ({"missing": 1}, "unknown"),
        ({"missing": 1, "open_messages": 3, "held": 3}, "unknown"),
        ({"missing": 1, "odd": 1}, "unknown"),
    ],
)
def test_the_verdict_is_balanced_only_where_nothing_is_missing_and_all_adds_up(given, word):
    assert verdict(**given) == word


@pytest.mark.parametrize(("journal", "serial", "known"), [("a", 10, 3), ("a", 9, None), ("b", 10, None)])
def test_an_inventory_of_another_moment_is_not_compared(journal, serial, known):
    assert _held(Held(journal, serial, 3), [JournalRange("a", 0, 10, 0, [])]) == known


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


def small_figures(**changed) -> ReportStatistics:
    at = datetime(2026, 9, 21, 10, tzinfo=UTC)
    counts = dict.fromkeys(
        ("published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped"), 1
    )
    spread = {f"{name}_p{one}": None for name in ("waiting", "processing") for one in (50, 95, 99)}
    conservation = balance(entered=1, left={"acked": 1}, open_messages=0, unseen=0, odd=0, purged=0, held=0)
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
    return ReportStatistics("a <b> & c", summary, tables | changed)


@pytest.mark.promise("The HTML report is self-contained: it loads and runs nothing, and escapes names from outside.")
def test_names_from_outside_stay_text():
    text = render_page(small_figures(), datetime.now(UTC))
    stands_alone(text)
    assert text.count("&lt;script&gt;alert") == 5
    assert "<img" not in text
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in text


def test_a_page_of_a_single_minute_has_its_plots():
    assert render_page(small_figures(), datetime.now(UTC)).count("<svg viewBox") == 4


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
    drawn = draw_lines("x", at, [Line("p", 1, [None, 3, None, 1, 2])], "count")
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
