"""A report says what a plain loop over the same journal says, never more than is known, on a page that stands alone."""

import json
import re
import time
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from redis_message_queue.spark.jobs.archive import ArchiveOptions, journal_table
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.conservation import JournalRange, balance, held_at_the_end
from redis_message_queue.spark.jobs.figures import SPREADS, STATES
from redis_message_queue.spark.jobs.inventory import HeldCount
from redis_message_queue.spark.jobs.page import render_overview, render_page
from redis_message_queue.spark.jobs.plots import (
    NARROW,
    WIDE,
    Line,
    Series,
    amount,
    bucket_size,
    draw,
    duration,
    floor_time,
    time_ticks,
    value_ticks,
)
from redis_message_queue.spark.jobs.report import (
    OverviewOptions,
    ReportOptions,
    Window,
    directory_of,
    overview,
    report,
    statistics_of,
)
from redis_message_queue.spark.jobs.statistics import ReportStatistics, jain
from redis_message_queue.spark.time_options import parse_time
from redis_message_queue.values.errors import ArchiveError, ConfigurationError
from tests import tables
from tests.depth import often
from tests.pipeline import expected_statistics
from tests.pipeline.journal_samples import (
    MINUTE,
    START,
    Event,
    Events,
    JournalSample,
    fill_queue,
    stored,
    write_journal,
)
from tests.pipeline.plain_archiver import NO_SESSION, archive_plainly

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"))


# With Spark


@pytest.mark.promise("The figures of a report equal those of a plain loop over the same journal.")
def test_its_figures_are_those_of_a_plain_loop_and_every_message_is_accounted_for(
    client, options, tmp_path, monkeypatch
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
            NO_SESSION, ReportOptions(path=options.path, queue="orders", output=str(tmp_path / "out")), heard.append
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
    for name, file in result.tables.items():  # each table is there twice
        rows = pq.read_table(file).to_pylist()
        twin = json.loads(Path(file).with_suffix(".json").read_text())
        assert [
            row | {one: value for one, value in same.items() if isinstance(value, str)}
            for row, same in zip(rows, twin, strict=True)
        ] == [row | same for row, same in zip(rows, twin, strict=True)], name
    text = Path(result.page).read_text()
    assert "<b>balanced</b>" in text
    stands_alone(text)
    json.dumps(result.as_dict())


@pytest.mark.promise("A report can be about a part of the time; its verdict is about all that is archived.")
def test_a_window_leaves_out_what_was_before_and_after(client, options, tmp_path):
    """Times that began before it are whole, and so is the verdict."""
    story = JournalSample(27).story(300)
    events = write_journal(client, options, story)
    fill_queue(client, options, story)
    archive_plainly(options)
    since, until = (START + minutes * MINUTE + 7_000_000 for minutes in (3, 7))
    window = Window(*(datetime.fromtimestamp(one / 1e6, UTC) for one in (since, until)))
    found = statistics_of(NO_SESSION, options.path, "orders", window=window)
    expected_statistics.agrees(found, events, since, until)
    assert found.summary["conservation"]["verdict"] == "balanced"
    assert 0 < found.summary["published"] < sum(event["event"] == "published" for event in events)
    text = render_page(found, datetime.now(UTC))
    assert "The verdict is about everything that is archived" in text

    page = overview(NO_SESSION, OverviewOptions(path=options.path, output=str(tmp_path / "all"), until=window.until))
    (one,) = page.reports
    assert (page.verdict, one.queue, one.entries > found.summary["entries"]) == ("balanced", "orders", True)
    assert 'href="orders/report.html"' in Path(page.page).read_text()
    assert Path(one.page) == tmp_path / "all" / "orders" / "report.html"
    assert (
        pq.read_table(page.table).to_pylist()[0]["published"] == json.loads(Path(page.json).read_text())[0]["published"]
    )


HOUR, DAY = 60 * MINUTE, 1440 * MINUTE
LONG_AGO = START - 2_000 * DAY  # by any clock on which this runs


def at_time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def told(at: int, event: str, number: int, tenant: str = "", **more: Any) -> Event:
    return {"at": at, "event": event, "id": f"{number:032x}", "tenant": tenant, **more}


def life(number: int, tenant: str = "", at: int = START) -> list[Event]:
    """A message that is handled at once."""
    return [
        told(at, "published", number, tenant),
        told(at + 1, "claimed", number, tenant, count=1),
        told(at + 2, "acked", number, tenant),
    ]


def later(number: int, due: int, tenant: str = "", at: int = START) -> list[Event]:
    """A message that is published with a delay."""
    return [told(at, "published", number, tenant), told(at, "delayed", number, tenant, due=due)]


def in_order(*lives: list[Event]) -> Events:
    return Events(sorted((event for one in lives for event in one), key=lambda one: one["at"]))


QUIET_WINDOWS = (
    *((START + DAY, None), (START + 3 * DAY, None), (START + HOUR, START + 2 * HOUR)),
    *((None, None), (None, START + DAY)),
)


@pytest.mark.promise("An overview shows what waits in a queue in which nothing has happened for days.")
def test_an_overview_shows_what_waits_although_nothing_happened_in_its_window(client, options, tmp_path, subtests):
    """Ten of them were delayed, and are due by the last entry, which is of another day."""
    waiting = [[told(START, "published", number)] for number in range(39)]
    delayed = [later(number, START + 30 * MINUTE) for number in range(39, 49)]
    never = later(49, START + 36_500 * DAY)
    last = [told(START + 2 * DAY, "duplicate", 60)]
    write_journal(client, options, in_order(*waiting, *delayed, never, life(50), last))
    archive_plainly(options)
    levels = {"waiting": 49, "in_flight": 0, "delayed": 1, "backlog": 50}
    for since, until in QUIET_WINDOWS[:: often(2, 1)]:
        with tables.row(subtests, since=since, until=until):
            window: dict[str, Any] = {"since": since and at_time(since), "until": until and at_time(until)}
            page = overview(NO_SESSION, OverviewOptions(path=options.path, output=str(tmp_path / "all"), **window))
            for rows in (json.loads(Path(page.json).read_text()), pq.read_table(page.table).to_pylist()):
                assert {name: rows[0][name] for name in levels} == levels
            assert "<td>49</td><td>0</td><td>1</td>" in Path(page.page).read_text()


def test_an_overview_shows_the_end_of_its_window_and_not_of_the_archive(client, options, tmp_path):
    """A message counts as delayed until it is due."""
    write_journal(
        client, options, in_order(later(1, START + HOUR), life(2, at=START + 2 * HOUR), [later(3, START + DAY)[0]])
    )
    archive_plainly(options)
    found = {}
    for until in (START + 30 * MINUTE, START + 90 * MINUTE):
        output = str(tmp_path / str(until))
        page = overview(NO_SESSION, OverviewOptions(path=options.path, output=output, until=at_time(until)))
        (row,) = json.loads(Path(page.json).read_text())
        found[until] = (row["waiting"], row["delayed"])
    assert list(found.values()) == [(1, 1), (2, 0)]


LEVELS_BY_TIME: tuple[tuple[int | None, tuple[int, int]], ...] = (
    *((None, (11, 1)), (LONG_AGO + 2 * DAY, (11, 1)), (LONG_AGO + HOUR, (1, 11))),
)


def test_an_overview_shows_messages_as_waiting_that_became_due_after_the_last_entry(
    client, options, tmp_path, subtests
):
    """By the time of the report, or by the end of its window: nothing else happened to them, by all that is known."""
    delayed = [later(number, LONG_AGO + DAY, at=LONG_AGO) for number in range(10)]
    waiting = [told(LONG_AGO, "published", 10)]
    write_journal(client, options, in_order(*delayed, waiting, later(11, LONG_AGO + 36_500 * DAY, at=LONG_AGO)))
    archive_plainly(options)
    for until, levels in LEVELS_BY_TIME[:: often(2, 1)]:
        with tables.row(subtests, until=until):
            window: dict[str, Any] = {"until": None if until is None else at_time(until)}
            page = overview(NO_SESSION, OverviewOptions(path=options.path, output=str(tmp_path / "all"), **window))
            (found,) = json.loads(Path(page.json).read_text())
            assert (found["waiting"], found["delayed"], found["backlog"]) == (*levels, 12)
            (minute,) = page.reports[0].statistics["tables"]["minutes"]
            assert (minute["waiting"], minute["delayed"]) == (1, 11), "the plot ends with the last entry"


def test_messages_that_became_due_while_nothing_happened_are_shown_as_waiting(client, options):
    """In the plot too. What becomes due after the last entry is not shown: nobody knows what happened by then."""
    delayed = [later(number, START + HOUR + 7) for number in range(10)]
    write_journal(client, options, in_order(*delayed, later(11, START + DAY), life(12, at=START + 6 * HOUR)))
    archive_plainly(options)
    found = statistics_of(NO_SESSION, options.path, "orders")
    rows = {row["minute"]: (row["waiting"], row["delayed"], row["published"]) for row in found.tables["minutes"]}
    assert rows == {
        at_time(START): (0, 11, 11),
        at_time(START + HOUR): (10, 1, 0),
        at_time(START + 6 * HOUR): (10, 1, 1),
    }
    text = render_page(found, datetime.now(UTC))
    plot = text[text.index('aria-label="In the queue"') :]
    titles = re.findall(r"<title>(.*?)</title>", plot[: plot.index("</svg>")], re.DOTALL)
    shown = {one.split("\n")[0]: one.split("\n")[1:] for one in titles}
    assert shown["2026-09-21 00:58:00 UTC"] == ["Waiting: 0", "In flight: 0", "Delayed: 11"]
    assert shown["2026-09-21 03:00:00 UTC"] == ["Waiting: 10", "In flight: 0", "Delayed: 1"]
    window = Window(at_time(START + 30 * MINUTE), at_time(START + 3 * HOUR))
    inside = statistics_of(NO_SESSION, options.path, "orders", window=window).tables["minutes"]
    assert [(row["minute"], row["waiting"], row["delayed"]) for row in inside] == [(at_time(START + HOUR), 10, 1)]


def fairness(options, **window: int) -> tuple[float, dict[str, tuple[int, int]]]:
    """With what each tenant got, and asked for."""
    found = statistics_of(
        NO_SESSION, options.path, "orders", window=Window(**{name: at_time(at) for name, at in window.items()})
    )
    rows = {row["tenant"] or "": (row["served"], row["demand"]) for row in found.tables["tenants"]}
    return found.summary["fairness"], rows


def test_fairness_leaves_out_what_is_not_due_yet(client, options):
    """Whatever the window is: what is due at its end was asked for."""
    lives = [life(number, "a", START + 9 * HOUR) for number in range(10)]
    delayed = [later(number, START + DAY, "b") for number in range(10, 20)]
    write_journal(client, options, in_order(*lives, *delayed))
    archive_plainly(options)
    assert fairness(options) == (1.0, {"a": (10, 10), "b": (0, 0)})
    write_journal(client, options, in_order(life(20, "a", START + DAY)))
    archive_plainly(options)
    assert fairness(options) == (0.5, {"a": (11, 11), "b": (0, 10)})
    assert fairness(options, until=START + DAY) == (1.0, {"a": (10, 10), "b": (0, 0)})
    assert fairness(options, since=START + HOUR, until=START + 10 * HOUR) == (1.0, {"a": (10, 10)})
    assert fairness(options, since=START + DAY) == (0.5, {"a": (1, 1), "b": (0, 10)})


def test_fairness_leaves_out_what_was_cancelled_before_anyone_had_it(client, options):
    """A message that was claimed, failed and is cancelled before its next attempt was served."""
    lives = [life(number, "a") for number in range(10)]
    lives += [life(number, "b") for number in range(10, 15)]
    for number in range(15, 20):
        lives.append([*later(number, START + HOUR, "b"), told(START + 5 + number, "cancelled", number, "b")])
    tried = [
        told(START, "published", 20, "b"),
        told(START + 1, "claimed", 20, "b", count=1),
        told(START + 2, "retried", 20, "b", due=START + MINUTE, error_type="ValueError"),
        told(START + 40, "cancelled", 20, "b"),
    ]
    unseen = [told(START + 50, "cancelled", 21, "b")]  # it was published before the journal began
    write_journal(client, options, in_order(*lives, tried, unseen))
    archive_plainly(options)
    assert fairness(options) == (1.0, {"a": (10, 10), "b": (6, 6)})


def test_a_purge_of_messages_that_are_not_due_is_not_subtracted_twice(client, options):
    lives = [life(number) for number in range(10)]
    delayed = [later(number, START + DAY) for number in range(10, 20)]
    purge = [{"at": START + HOUR, "event": "purged", "id": "", "tenant": "", "count": 10, "target": "delayed"}]
    write_journal(client, options, in_order(*lives, *delayed, purge))
    archive_plainly(options)
    assert fairness(options) == (1.0, {"": (10, 10)})


def test_with_gaps_it_counts_what_is_there_and_says_what_is_unknown(client, options):
    story = JournalSample(22).story(150)
    events = write_journal(client, options, story, lost=(range(30, 60), range(200, 203)))
    fill_queue(client, options, story)
    archive_plainly(options)
    found = statistics_of(NO_SESSION, options.path, "orders")
    expected_statistics.agrees(found, events)
    assert found.summary["conservation"]["verdict"] == "unknown"
    assert found.summary["conservation"]["missing_serials"] == 33
    text = render_page(found, datetime.now(UTC))
    assert "33 journal entries are not in the archive" in text
    assert [(one["first_serial"], one["count"]) for one in found.tables["missing"]] == [(30, 30), (200, 3)]
    assert all(one["after_at"] <= one["before_at"] for one in found.tables["missing"])
    assert text.count('class="gap"') >= 2 * 6, "every plot shows where entries are missing"


@pytest.mark.promise("A message that is missing and one that another program added do not cancel out in a report.")
@pytest.mark.parametrize("foreign", [pytest.param(b"another program's", marks=pytest.mark.in_full), None])
def test_a_missing_message_and_a_foreign_one_do_not_cancel_out(client, options, foreign):
    """The second is a message of ours that the journal knows nothing of."""
    story = JournalSample(23).story(200)
    write_journal(client, options, story)
    fill_queue(client, options, story)
    lost = story.pending[0]
    client.rpop(options.keys.pending)
    client.lpush(options.keys.pending, foreign or stored("0123456789abcdef" * 2))
    archive_plainly(options)
    conservation = statistics_of(NO_SESSION, options.path, "orders").summary["conservation"]
    assert (conservation["verdict"], conservation["foreign"]) == ("unbalanced", 1)
    assert re.search(rf"1 messages that should be in the queue are not there .*{lost}", conservation["because"])


def test_what_a_flush_has_destroyed_is_told(client, options):
    story = JournalSample(24).story(100)
    write_journal(client, options, story)
    fill_queue(client, options, story)
    archive_plainly(options)
    client.flushall()
    write_journal(client, options, JournalSample(25, start=START + 60 * MINUTE).story(0))
    archive_plainly(options)
    conservation = statistics_of(NO_SESSION, options.path, "orders").summary["conservation"]
    lost = len(story.pending) + len(story.processing) + len(story.delayed)
    assert conservation["verdict"] == "unbalanced"
    assert f"{lost} messages were in the queue when its data was deleted" in conservation["because"]


def test_entries_that_were_deleted_from_the_archive_are_missing(client, options):
    """As by repair(), which forgets files that are gone."""
    write_journal(client, options, JournalSample(26).story(100))
    archive_plainly(ArchiveOptions(url=options.url, queue="orders", path=options.path, partition_rows=60))
    table = journal_table(location_of(options.path))
    gone = max(table.files("orders"), key=lambda one: one.statistics["serial"][1])
    Path(table.location.uri, gone.path).unlink()
    table.open().repair()
    conservation = statistics_of(NO_SESSION, options.path, "orders").summary["conservation"]
    assert (conservation["verdict"], conservation["missing_serials"]) == ("unknown", gone.rows)


def test_a_directory_that_cannot_be_written_is_named_before_anything_is_computed(client, options, tmp_path):
    write_journal(client, options, JournalSample(1).story(5))
    archive_plainly(options)
    (tmp_path / "file").write_text("not a directory")
    output, heard = str(tmp_path / "file" / "report"), []
    with pytest.raises(ArchiveError, match=rf"the storage at {re.escape(output)} failed: .*Not a directory"):
        report(NO_SESSION, ReportOptions(path=options.path, queue="orders", output=output), heard.append)
    assert heard == []
    with pytest.raises(ArchiveError, match=r"the storage at .*journal failed: .*Not a directory"):
        archive_plainly(ArchiveOptions(url=options.url, queue="orders", path=output))


def test_a_queue_that_was_not_archived_is_named_with_those_that_were(client, options, tmp_path):
    write_journal(client, options, JournalSample(1).story(5))
    archive_plainly(options)
    with pytest.raises(ArchiveError, match=r"no archive of the queue 'invoices' at .*; archived there: 'orders'"):
        report(NO_SESSION, ReportOptions(path=options.path, queue="invoices", output=str(tmp_path)))


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
    assert held_at_the_end([HeldCount(journal, serial, 3)], [JournalRange("a", 0, 10, 0, [])]) == known


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


def small_figures(text: str = HOSTILE, queue: str = "a <b> & c", **changed) -> ReportStatistics:
    at = datetime(2026, 9, 21, 10, tzinfo=UTC)
    counts = dict.fromkeys(
        ("published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped"), 1
    )
    spread = {f"{name}_p{one}": None for name in SPREADS for one in (50, 95, 99)}
    levels = dict.fromkeys((*STATES, "backlog"), 0)
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
            "outcomes": 1,
            "errors": 1,
            "error_ratio": 1.0,
            "fairness": None,
            "tenants": 1,
            "since": None,
            "until": None,
            "conservation": conservation,
        }
    )
    tables = {
        "minutes": [counts | spread | levels | {"minute": at, "removed": 0, "outcomes": 1, "errors": 1}],
        "tenants": [counts | spread | {"tenant": text, "share": 1.0, "served": 1, "demand": 1}],
        "tenants_over_time": [counts | {"minute": at, "tenant": text}],
        "failures": [
            {"error_type": text, "failed": 1, "retried": 0, "dead": 0, "total": 1, "messages": 1, "error": text}
        ],
        "dead_letters": [
            {"error_type": text, "reason": text, "letters": 1, "tenants": 1, "newest_id": text}
            | {"first_at": at, "last_at": at, "error": text}
        ],
        "conservation": conservation["accounts"],
        "missing": [],
    }
    return ReportStatistics(queue, summary, tables | changed)


@pytest.mark.promise("The HTML report is self-contained: it loads and runs nothing, and escapes names from outside.")
def test_names_from_outside_stay_text():
    text = render_page(small_figures(), datetime.now(UTC))
    stands_alone(text)
    # A tenant is also in the legend, the values and the tooltips of its plot, in two sizes.
    assert text.count("&lt;script&gt;alert") == 7 + 4
    assert "<img" not in text
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in text


def test_an_overview_escapes_names_and_links_to_each_report():
    row = small_figures().summary | {"queue": HOSTILE, "directory": directory_of(HOSTILE), "verdict": "unbalanced"}
    text = render_overview([row | dict.fromkeys((*STATES, "backlog"), 0) | {"because": HOSTILE}], Window(), START_TIME)
    assert "<script" not in text
    assert "<img" not in text
    assert f'href="{directory_of(HOSTILE).replace("%", "%25")}/report.html"' in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("name", ["..", "a/b", "Ärger", "a b%2F", "."])
def test_every_queue_has_a_directory_of_its_own_name(name):
    assert re.fullmatch(r"[A-Za-z0-9%_~-]+", directory_of(name))


START_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_page_of_a_single_minute_has_a_plot_where_there_is_something_to_show():
    """In two sizes, one for a phone. Where there is nothing it says so: no axis from 0 to 1."""
    text = render_page(small_figures(), datetime.now(UTC))
    drawn = re.findall(r'<svg class="(\w+)" .*? aria-label="([\w ]+)"', text)
    assert [name for size, name in drawn if size == "wide"] == [
        *("Throughput", "Failed attempts", "Error rate", "Tenants"),
    ]
    assert sorted(name for size, name in drawn if size == "narrow") == sorted(
        name for size, name in drawn if size == "wide"
    )
    assert "The queue was empty." in text
    assert "No message was claimed." in text


def test_a_year_fits_into_a_plot():
    at = START_TIME
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    assert bucket_size(at, at, minute) == 1
    assert bucket_size(at, at + timedelta(days=1), minute) == 10
    assert bucket_size(at, at + timedelta(days=364), minute) == 10080
    assert bucket_size(at, at + timedelta(seconds=15), second) == 1
    assert bucket_size(at, at + timedelta(seconds=599), second) == 5


def test_buckets_begin_at_round_times():
    at = datetime(2026, 1, 1, 10, 17, tzinfo=UTC)
    assert floor_time(at, timedelta(minutes=10)) == at.replace(minute=10)
    assert floor_time(at, timedelta(days=1)) == at.replace(hour=0, minute=0)


@pytest.mark.parametrize(
    ("span", "ticks"),
    [
        (timedelta(), ["10:17"]),
        (timedelta(minutes=40), ["10:20", "10:30", "10:40", "10:50"]),
        (timedelta(hours=5), ["11:00", "12:00", "13:00", "14:00", "15:00"]),
        (timedelta(days=2), ["12:00", "00:00", "12:00", "00:00"]),
    ],
)
def test_an_axis_has_round_times(span, ticks):
    at = datetime(2026, 1, 1, 10, 17, tzinfo=UTC)
    assert [one.strftime("%H:%M") for one in time_ticks(at, at + span, 6)] == ticks


@pytest.mark.parametrize(
    ("top", "unit", "ticks"),
    [
        (0, "count", [0, 1]),
        (3, "count", [0, 1, 2, 3]),
        (1_234, "count", [0, 500, 1_000, 1_500]),
        (1_900, "seconds", [0, 600, 1_200, 1_800, 2_400]),
        (0.012, "seconds", [0, 0.005, 0.01, 0.015]),
        (800_000, "seconds", [0, 172_800, 345_600, 518_400, 691_200, 864_000]),
        (0.03, "share", [0, 0.01, 0.02, 0.03]),
        (1, "count", [0, 1]),
        (1 / 30, "average", [0, 0.01, 0.02, 0.03, 0.04]),
        (0.9, "average", [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3, "average", [0, 1, 2, 3]),
    ],
)
def test_an_axis_has_round_values(top, unit, ticks):
    assert value_ticks(top, unit) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0"),
        (7, "7"),
        (1 / 30, "0.033"),
        (0.5, "0.5"),
        (0.04, "0.04"),
        (0.996, "1"),
        (1 / 43_200, "0.000023"),
        (2.25, "2.2"),
        (123.4, "123"),
        (1_234_567, "1,234,567"),
    ],
)
def test_an_amount_that_is_not_zero_never_reads_as_zero(value, text):
    assert amount(value) == text


def test_one_failure_in_days_is_seen_in_the_plot_and_in_its_values():
    """Over several days its bucket is an average: one dead letter in 30 minutes read 0.0, under an axis up to 1."""
    row = small_figures().tables["minutes"][0] | dict.fromkeys(("failed", "retried", "dead"), 0)
    minutes = [row | {"minute": START_TIME}, row | {"minute": START_TIME + timedelta(days=4)}]
    minutes.insert(1, row | {"minute": START_TIME + timedelta(days=2), "dead": 1})
    text = render_page(small_figures(minutes=minutes, tenants_over_time=[]), datetime.now(UTC))
    plot = text[text.index('aria-label="Failed attempts"') :]
    drawn, table = plot[: plot.index("</svg>")], plot[: plot.index("</details>")].split("<tbody>")[1]
    assert "Dead-lettered: 0.033<" in drawn
    assert re.findall(r'text-anchor="end">([\d.]+)<', drawn) == ["0", "0.01", "0.02", "0.03", "0.04"]
    assert table.count("<td>0.033</td>") == 1
    assert "0.0<" not in text


def series(lines, unit="count", times=5, **more) -> Series:
    at = [START_TIME + timedelta(minutes=minute) for minute in range(times)]
    return Series("x", "", unit, at, timedelta(minutes=1), lines, **more)


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_a_label_has_room_beside_its_axis(size):
    """It was cut to a wrong number: "33 min" read "3 min"."""
    drawn = draw(series([Line("p", 1, [100_000.0] * 5)], "seconds"), size)
    labels = re.findall(r'<text class="tick" x="(\d+)" [^>]*text-anchor="end">([^<]+)<', drawn)
    assert any(len(text) > 5 for _, text in labels)
    assert all(int(x) >= 6.4 * len(text) for x, text in labels)


def test_a_value_between_two_gaps_is_a_dot_and_not_invisible():
    drawn = draw(series([Line("p", 1, [None, 3, None, 1, 2])]))
    assert drawn.count("<circle") == 1
    assert drawn.count("<polyline") == 1


def test_a_line_on_the_same_values_is_seen_on_the_wider_one():
    drawn = draw(series([Line("50", 1, [1] * 5, 1.5), Line("99", 2, [1] * 5, 6)]))
    assert re.findall(r'class="line (c\d)"', drawn) == ["c2", "c1"]


def test_a_page_without_entries_says_so_instead_of_naming_no_times():
    nothing = {"entries": 0, "first_at": None, "last_at": None}
    found = small_figures(minutes=[], tenants_over_time=[])
    found.summary.update(nothing | {"since": START_TIME})
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    assert "from 2026-01-01 00:00:00 UTC on: nothing. From 0 journal entries" in text
    found.summary["until"] = START_TIME + timedelta(days=1)
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    assert "from 2026-01-01 00:00:00 UTC to 2026-01-02 00:00:00 UTC: nothing. From 0 journal entries" in text
    found.summary["since"] = None
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    assert "What went through this queue until 2026-01-02 00:00:00 UTC: nothing. From 0 journal entries" in text


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (Window(START_TIME), "What happened from 2026-01-01 00:00:00 UTC on. Made"),
        (Window(None, START_TIME), "What happened until 2026-01-01 00:00:00 UTC. Made"),
        (
            Window(START_TIME, START_TIME + timedelta(days=1)),
            "What happened from 2026-01-01 00:00:00 UTC to 2026-01-02 00:00:00 UTC. Made",
        ),
        (Window(), "All that is archived. Made"),
    ],
)
def test_an_overview_names_only_the_bounds_that_it_has(window, says):
    text = " ".join(render_overview([], window, datetime.now(UTC)).split())
    assert says in text


@pytest.mark.parametrize(("tenants", "worst"), [(1, None), (4, "0.250")])
def test_the_worst_fairness_is_told_only_among_several_tenants(tenants, worst):
    """A tenant that asked for nothing is not one of them."""
    (row,) = small_figures().tables["tenants"]
    rows = [row | {"tenant": str(number)} for number in range(tenants)]
    found = small_figures(tenants=[*rows, row | {"tenant": "idle", "demand": 0, "served": 0}])
    found.summary["fairness"] = 1.0
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    told = re.findall(r"part of its messages delivered(?:, ([\d.]+) if only one got any)?\)", text)
    assert told == [worst or ""]


def test_missing_entries_are_a_gap_and_not_a_zero():
    minutes = [START_TIME + timedelta(minutes=minute) for minute in (0, 1, 8, 9)]
    row = small_figures().tables["minutes"][0]
    gap = {"journal": "x", "first_serial": 1, "count": 5}
    gap |= {"after_at": minutes[1], "before_at": minutes[2]}
    found = small_figures(minutes=[row | {"minute": one} for one in minutes], missing=[gap], tenants_over_time=[])
    text = render_page(found, datetime.now(UTC))
    throughput = text[text.index('aria-label="Throughput"') :]
    throughput = throughput[: throughput.index("</svg>")]
    assert throughput.count("<polyline") == 4, "each of two lines is interrupted"
    assert "Entries are missing from 2026-01-01 00:01:00 UTC to 2026-01-01 00:08:00 UTC" in throughput
    found = small_figures(minutes=[row | {"minute": one} for one in minutes], tenants_over_time=[])
    quiet = render_page(found, datetime.now(UTC))
    assert quiet[quiet.index('aria-label="Throughput"') :].split("</svg>")[0].count("<polyline") == 2


@pytest.mark.parametrize(
    ("given", "time"),
    [
        ("2026-09-21", "2026-09-21T00:00:00+00:00"),
        ("2026-09-21T08:00", "2026-09-21T08:00:00+00:00"),
        ("2026-09-21T08:00+02:00", "2026-09-21T08:00:00+02:00"),
        ("yesterday", "2026-11-16T00:00:00+00:00"),
        ("today", "2026-11-17T00:00:00+00:00"),
        ("36h", "2026-11-15T22:30:00+00:00"),
        ("90m", "2026-11-17T09:00:00+00:00"),
        (datetime(2026, 9, 21), "2026-09-21T00:00:00+00:00"),
    ],
)
def test_a_window_is_given_in_many_ways(given, time):
    assert parse_time("since", given, datetime(2026, 11, 17, 10, 30, tzinfo=UTC)).isoformat() == time


@pytest.mark.parametrize(
    ("times", "error", "says"),
    [
        ({"since": "monday"}, ConfigurationError, "since must be a time such as 2026-09-21.* not 'monday'"),
        ({"until": 5}, TypeError, "until must be a datetime or a text, not int"),
        ({"since": "today", "until": "yesterday"}, ConfigurationError, "until must be later than since"),
        ({"since": "99999999999d"}, ConfigurationError, "since must be a time such as .*, not '99999999999d'"),
        ({"since": "9999999999999999999h"}, ConfigurationError, "since must be a time such as"),
        ({"since": "9" * 5_000 + "m"}, ConfigurationError, "since must be a time such as"),
        (
            {"since": "0001-01-01T00:00+14:00"},
            ConfigurationError,
            r"since must be a time .*, not '0001-01-01T00:00\+14",
        ),
        ({"until": "9999-12-31T23:00-02:00"}, ConfigurationError, "until must be a time such as"),
        (
            {"since": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))},
            ConfigurationError,
            "since must be a time such as",
        ),
    ],
)
def test_a_window_that_cannot_be_is_refused(times, error, says):
    with pytest.raises(error, match=says):
        ReportOptions(path="a", queue="b", output="c", **times)
    with pytest.raises(error, match=says):
        OverviewOptions(path="a", output="c", **times)


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
