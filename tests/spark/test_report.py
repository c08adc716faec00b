"""A report says what a plain loop over the same journal says, and never more than is known."""

import json
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from redis_message_queue.spark.jobs.archive import ArchiveOptions, CompactOptions, compact, journal_table
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.lake import read_messages
from redis_message_queue.spark.jobs.page import render_page
from redis_message_queue.spark.jobs.refresh import RefreshOptions, refresh
from redis_message_queue.spark.jobs.report import (
    AcknowledgeOptions,
    OverviewOptions,
    ReportOptions,
    Window,
    acknowledge,
    overview,
    report,
    statistics_of,
)
from redis_message_queue.spark.jobs.statistics import ReportStatistics
from tests import tables
from tests.depth import often
from tests.docs.pages import DOCS, blocks_of, keeps
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
from tests.pipeline.plain_archiver import archive_plainly
from tests.pipeline.test_report import stands_alone

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"))


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
    for row in told["tables"]["over_time"]:
        row["start"] = datetime.fromisoformat(row["start"])
    expected_statistics.agrees(ReportStatistics("orders", told["summary"], told["tables"]), events)
    minutes = pq.read_table(result.tables["over_time"]).to_pylist()
    assert {row["start"] for row in minutes} == expected_statistics.figures(events)["minutes"].keys()
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


@pytest.mark.in_full
@pytest.mark.promise("A report can be about a part of the time; its verdict is about all that is archived.")
def test_a_window_leaves_out_what_was_before_and_after(spark, client, options, tmp_path):
    """It is about whole minutes. Times that began before it are whole, and so is the verdict."""
    story = JournalSample(27).story(300)
    events = write_journal(client, options, story)
    fill_queue(client, options, story)
    archive_plainly(options)
    since, until = (START + minutes * MINUTE for minutes in (3, 7))
    window = Window(*(datetime.fromtimestamp(one / 1e6, UTC) for one in (since + 7_000_000, until - 7_000_000)))
    found = statistics_of(spark, options.path, "orders", window=window)
    expected_statistics.agrees(found, events, since, until)
    assert found.summary["conservation"]["verdict"] == "balanced"
    assert 0 < found.summary["published"] < sum(event["event"] == "published" for event in events)
    text = render_page(found, datetime.now(UTC))
    assert "The verdict is about everything that is archived" in text

    page = overview(spark, OverviewOptions(path=options.path, output=str(tmp_path / "all"), until=window.until))
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


@pytest.mark.in_full  # the test of the commands shows an overview
@pytest.mark.promise("An overview shows what waits in a queue in which nothing has happened for days.")
def test_an_overview_shows_what_waits_although_nothing_happened_in_its_window(
    spark, client, options, tmp_path, subtests
):
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
            page = overview(spark, OverviewOptions(path=options.path, output=str(tmp_path / "all"), **window))
            for rows in (json.loads(Path(page.json).read_text()), pq.read_table(page.table).to_pylist()):
                assert {name: rows[0][name] for name in levels} == levels
            assert "<td>49</td><td>0</td><td>1</td>" in Path(page.page).read_text()


@pytest.mark.in_full
def test_an_overview_shows_the_end_of_its_window_and_not_of_the_archive(spark, client, options, tmp_path):
    """A message counts as delayed until it is due."""
    write_journal(
        client, options, in_order(later(1, START + HOUR), life(2, at=START + 2 * HOUR), [later(3, START + DAY)[0]])
    )
    archive_plainly(options)
    found = {}
    for until in (START + 30 * MINUTE, START + 90 * MINUTE):
        output = str(tmp_path / str(until))
        page = overview(spark, OverviewOptions(path=options.path, output=output, until=at_time(until)))
        (row,) = json.loads(Path(page.json).read_text())
        found[until] = (row["waiting"], row["delayed"])
    assert list(found.values()) == [(1, 1), (2, 0)]


LEVELS_BY_TIME: tuple[tuple[int | None, tuple[int, int]], ...] = (
    *((None, (11, 1)), (LONG_AGO + 2 * DAY, (11, 1)), (LONG_AGO + HOUR, (1, 11))),
)


@pytest.mark.in_full
def test_an_overview_shows_messages_as_waiting_that_became_due_after_the_last_entry(
    spark, client, options, tmp_path, subtests
):
    """By the time of the report, or by the end of its window: nothing else happened to them, by all that is known."""
    delayed = [later(number, LONG_AGO + DAY, at=LONG_AGO) for number in range(10)]
    waiting = [told(LONG_AGO, "published", 10)]
    write_journal(client, options, in_order(*delayed, waiting, later(11, LONG_AGO + 36_500 * DAY, at=LONG_AGO)))
    archive_plainly(options)
    for until, levels in LEVELS_BY_TIME[:: often(2, 1)]:
        with tables.row(subtests, until=until):
            window: dict[str, Any] = {"until": None if until is None else at_time(until)}
            page = overview(spark, OverviewOptions(path=options.path, output=str(tmp_path / "all"), **window))
            (found,) = json.loads(Path(page.json).read_text())
            assert (found["waiting"], found["delayed"], found["backlog"]) == (*levels, 12)
            (minute,) = page.reports[0].statistics["tables"]["over_time"]
            assert (minute["waiting"], minute["delayed"]) == (1, 11), "the plot ends with the last entry"


@pytest.mark.in_full
def test_messages_that_became_due_while_nothing_happened_are_shown_as_waiting(spark, client, options):
    """In the plot too. What becomes due after the last entry is not shown: nobody knows what happened by then."""
    delayed = [later(number, START + HOUR + 7) for number in range(10)]
    write_journal(client, options, in_order(*delayed, later(11, START + DAY), life(12, at=START + 6 * HOUR)))
    archive_plainly(options)
    found = statistics_of(spark, options.path, "orders")
    rows = {row["start"]: (row["waiting"], row["delayed"], row["published"]) for row in found.tables["over_time"]}
    assert rows == {
        at_time(START): (0, 11, 11),
        at_time(START + HOUR): (10, 1, 0),
        at_time(START + 6 * HOUR): (10, 1, 1),
    }
    assert {row["seconds"] for row in found.tables["over_time"]} == {120}
    text = render_page(found, datetime.now(UTC))
    plot = text[text.index('aria-label="In the queue"') :]
    titles = re.findall(r"<title>(.*?)</title>", plot[: plot.index("</svg>")], re.DOTALL)
    shown = {one.split("\n")[0]: one.split("\n")[1:] for one in titles}
    assert shown["2026-09-21 00:58:00 UTC"] == ["Peak of all: 11", "Waiting: 0", "In flight: 0", "Delayed: 11"]
    assert shown["2026-09-21 03:00:00 UTC"] == ["Peak of all: 11", "Waiting: 10", "In flight: 0", "Delayed: 1"]
    window = Window(at_time(START + 30 * MINUTE), at_time(START + 3 * HOUR))
    inside = statistics_of(spark, options.path, "orders", window=window).tables["over_time"]
    assert [(row["start"], row["waiting"], row["delayed"]) for row in inside] == [(at_time(START + HOUR), 10, 1)]


def fairness(spark, options, **window: int) -> tuple[float, dict[str, tuple[int, int]]]:
    """With what each tenant got, and asked for."""
    found = statistics_of(
        spark, options.path, "orders", window=Window(**{name: at_time(at) for name, at in window.items()})
    )
    rows = {row["tenant"] or "": (row["served"], row["demand"]) for row in found.tables["tenants"]}
    return found.summary["fairness"], rows


@pytest.mark.in_full
def test_fairness_leaves_out_what_is_not_due_yet(spark, client, options):
    """Whatever the window is: what is due at its end was asked for."""
    lives = [life(number, "a", START + 9 * HOUR) for number in range(10)]
    delayed = [later(number, START + DAY, "b") for number in range(10, 20)]
    write_journal(client, options, in_order(*lives, *delayed))
    archive_plainly(options)
    assert fairness(spark, options) == (1.0, {"a": (10, 10), "b": (0, 0)})
    write_journal(client, options, in_order(life(20, "a", START + DAY)))
    archive_plainly(options)
    assert fairness(spark, options) == (0.5, {"a": (11, 11), "b": (0, 10)})
    assert fairness(spark, options, until=START + DAY) == (1.0, {"a": (10, 10), "b": (0, 0)})
    assert fairness(spark, options, since=START + HOUR, until=START + 10 * HOUR) == (1.0, {"a": (10, 10)})
    assert fairness(spark, options, since=START + DAY) == (0.5, {"a": (1, 1), "b": (0, 10)})


@pytest.mark.in_full
def test_fairness_leaves_out_what_was_cancelled_before_anyone_had_it(spark, client, options):
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
    assert fairness(spark, options) == (1.0, {"a": (10, 10), "b": (6, 6)})


@pytest.mark.in_full
def test_a_purge_of_messages_that_are_not_due_is_not_subtracted_twice(spark, client, options):
    lives = [life(number) for number in range(10)]
    delayed = [later(number, START + DAY) for number in range(10, 20)]
    purge = [{"at": START + HOUR, "event": "purged", "id": "", "tenant": "", "count": 10, "target": "delayed"}]
    write_journal(client, options, in_order(*lives, *delayed, purge))
    archive_plainly(options)
    assert fairness(spark, options) == (1.0, {"": (10, 10)})


@pytest.mark.in_full  # tests/pipeline has the verdicts
def test_with_gaps_it_counts_what_is_there_and_says_what_is_unknown(spark, client, options):
    story = JournalSample(22).story(150)
    events = write_journal(client, options, story, lost=(range(30, 60), range(200, 203)))
    fill_queue(client, options, story)
    archive_plainly(options)
    found = statistics_of(spark, options.path, "orders")
    expected_statistics.agrees(found, events)
    assert found.summary["conservation"]["verdict"] == "unknown"
    assert found.summary["conservation"]["missing_serials"] == 33
    text = render_page(found, datetime.now(UTC))
    assert "33 journal entries are not in the archive" in text
    assert [(one["first_serial"], one["count"]) for one in found.tables["missing"]] == [(30, 30), (200, 3)]
    assert all(one["after_at"] <= one["before_at"] for one in found.tables["missing"])
    assert text.count('class="gap"') >= 2 * 6, "every plot shows where entries are missing"


@pytest.mark.in_full  # tests/pipeline has the verdicts
@pytest.mark.promise("A message that is missing and one that another program added do not cancel out in a report.")
@pytest.mark.parametrize("foreign", [pytest.param(b"another program's", marks=pytest.mark.in_full), None])
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


@pytest.mark.promise("What an operator has acknowledged, and what retention has deleted, is accounted for by name.")
def test_what_a_flush_has_destroyed_is_told_until_an_operator_acknowledges_it(spark, client, options):
    story = JournalSample(24).story(100)
    write_journal(client, options, story)
    fill_queue(client, options, story)
    archive_plainly(options)
    refresh(spark, RefreshOptions(path=options.path, queue="orders"))
    client.flushall()
    after = JournalSample(25, start=START + 60 * MINUTE).story(5)
    write_journal(client, options, after)
    fill_queue(client, options, after)
    archive_plainly(options)
    conservation = statistics_of(spark, options.path, "orders").summary["conservation"]
    lost = len(story.pending) + len(story.processing) + len(story.delayed)
    assert conservation["verdict"] == "unbalanced"
    assert f"{lost} messages were in the queue when its data was deleted" in conservation["because"]
    rows = read_messages(spark, options.path, "orders").where("state = 'lost'").collect()
    assert {row.id for row in rows} >= {*story.pending, *story.processing, *story.delayed}, "and those purged before"

    known = AcknowledgeOptions(path=options.path, queue="orders", reason="the failover of March")
    done = acknowledge(spark, known)
    assert (done.before, done.verdict) == ("unbalanced", "balanced")
    compact(CompactOptions(path=options.path, queue="orders", keep_days=1, grace_seconds=0))
    found = statistics_of(spark, options.path, "orders")
    assert found.summary["conservation"]["verdict"] == "balanced"
    text = render_page(found, datetime.now(UTC))
    assert "the failover of March" in text
    assert "entries that are older than what is kept" in text


@pytest.mark.in_full
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


def test_the_peak_of_a_bucket_is_not_missed_between_its_ends(spark, client, options):
    """A thousand messages come and go within a second; ten stay."""
    burst = [told(START + 61_000_000 + number, "published", number) for number in range(1_010)]
    gone = [told(START + 61_500_000 + number, "acked", number) for number in range(1_000)]
    quiet = life(2_000, at=START + 30 * MINUTE)
    write_journal(client, options, in_order(burst, gone, quiet))
    archive_plainly(options)
    found = statistics_of(spark, options.path, "orders")
    levels = {row["start"]: (row["backlog"], row["peak"]) for row in found.tables["over_time"]}
    assert levels == {at_time(START + MINUTE): (10, 1_010), at_time(START + 30 * MINUTE): (10, 11)}
    assert found.summary["peak"] == 1_010


@pytest.mark.in_full
def test_the_page_about_the_jobs_does_what_it_says(spark, clean_server, client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = {}

    def note(*values):
        said[sys._getframe(1).f_lineno] = " ".join(map(str, values))

    (block,) = [one for one in blocks_of(DOCS / "how-to" / "archive-and-report.md") if "session" in one.code]
    code = block.code.replace("redis://localhost:6379/0", clean_server.url)
    exec(compile("\n" * (block.line - 1) + code, str(block.page), "exec"), {"print": note})
    for line, promise in block.promises.items():
        assert keeps(promise, [said[line]])
    assert (tmp_path / "report" / "report.html").exists()
