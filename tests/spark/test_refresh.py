"""The tables of messages and counts follow the journal: nothing twice, nothing lost, whenever a run dies."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redis_message_queue.spark.jobs.archive import ArchiveOptions, CompactOptions, compact
from redis_message_queue.spark.jobs.archive_tables import ArchiveTable, location_of
from redis_message_queue.spark.jobs.lake import LEAVING, Lake, read_messages
from redis_message_queue.spark.jobs.refresh import RefreshOptions, refresh
from redis_message_queue.spark.jobs.report import statistics_of
from redis_message_queue.values.errors import ArchiveError
from tests.depth import often
from tests.pipeline import expected_statistics
from tests.pipeline.journal_samples import MINUTE, START, Event, Events, JournalSample, fill_queue, write_journal
from tests.pipeline.plain_archiver import archive_plainly

pytestmark = pytest.mark.topic("Data pipeline")

ROOT = Path(__file__).parents[2]
DAY = 1440 * MINUTE
COMMITS = ("planned", "incidents", "messages", "minutes", "hours", "open_messages")


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"))


@pytest.fixture
def lake(options) -> Lake:
    return Lake(location_of(options.path), "orders")


KILLED = """
import os, signal, sys
from redis_message_queue.spark import session
from redis_message_queue.spark.driver import QUICK_START
from redis_message_queue.spark.jobs.refresh import RefreshOptions, refresh

path, scratch, commit = sys.argv[1:]

def die(progress):
    if commit in (progress.step, progress.detail):
        os.kill(os.getpid(), signal.SIGKILL)

spark = session("killed", "local[2]", **QUICK_START | {"spark.local.dir": scratch})
refresh(spark, RefreshOptions(path=path, queue="orders"), die)
"""


def kill_after(commit: str, options, scratch: Path) -> None:
    """A refresh in a process of its own, which gets SIGKILL after a commit. Its JVM ends with it."""
    program = [sys.executable, "-c", KILLED, options.path, str(scratch), commit]
    killed = subprocess.run(program, stderr=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def bring_up(spark, options):
    return refresh(spark, RefreshOptions(path=options.path, queue="orders"))


def add(client, options, events: list[Event]) -> list[Event]:
    written = write_journal(client, options, Events(events))
    archive_plainly(options)
    return written


def told(at: int, event: str, number: int, **more: Any) -> Event:
    return {"at": at, "event": event, "id": f"{number:032x}", "tenant": "", **more}


@pytest.mark.in_full  # starts a JVM for each death
@pytest.mark.promise("Each message has one row in the lake, whenever a refresh is killed.")
def test_a_refresh_that_is_killed_between_any_two_commits_doubles_nothing(spark, client, options, lake, tmp_path):
    """More entries are archived before the next run, which first finishes what the dead one began."""
    story = JournalSample(51, payloads=True).story(300)
    deaths = COMMITS[2 :: often(6, 1)] + COMMITS[: often(0, 2)]
    size = -(-len(story.events) // (len(deaths) + 1))
    parts = [story.events[start : start + size] for start in range(0, len(story.events), size)]
    events = add(client, options, parts[0])
    for commit, part in zip(deaths, parts[1:], strict=True):
        kill_after(commit, options, tmp_path)
        assert ids_are_unique(spark, options), commit
        if commit in deaths[::2]:
            bring_up(spark, options)
        events += add(client, options, part)
    fill_queue(client, options, story)
    archive_plainly(options)
    bring_up(spark, options)
    assert bring_up(spark, options).entries == 0, "nothing is new"
    assert ids_are_unique(spark, options)
    states = dict(read_messages(spark, options.path, "orders").select("id", "state").collect())
    last = {event["id"]: event["event"] for event in events if event["id"] and event["event"] != "duplicate"}
    assert {one: state for one, state in states.items() if state in LEAVING} == {
        one: event for one, event in last.items() if event in LEAVING
    }
    assert states.keys() == last.keys()
    found = statistics_of(spark, options.path, "orders")
    assert found.summary["conservation"]["verdict"] == "balanced", found.summary["conservation"]
    expected_statistics.agrees(found, events)
    assert {one["kind"] for one in lake.rows(lake.incidents)} == {"purged"}


def ids_are_unique(spark, options) -> bool:
    ids = [row.id for row in read_messages(spark, options.path, "orders").select("id").collect()]
    return len(ids) == len(set(ids))


def test_a_row_says_what_became_of_its_message(spark, client, options):
    """Over two refreshes, between which it was in flight."""
    first = [
        told(START, "published", 1, payload="one", headers='{"trace": "7"}'),
        told(START, "delayed", 1, due=START + 1_000_000),
        told(START + 3_000_000, "claimed", 1, count=1, by="host:1"),
        told(START + 4_000_000, "retried", 1, due=START + 6_000_000, failures=1, error_type="ValueError"),
        told(START + 7_000_000, "claimed", 1, count=1, by="host:2"),
    ]
    second = [told(START + 9_000_000, "acked", 1, started=START + 7_500_000, handled=1_000_000)]
    add(client, options, first)
    bring_up(spark, options)
    (row,) = read_messages(spark, options.path, "orders").collect()
    assert (row.state, row.deliveries, row.attempts, row.finished_at) == ("in_flight", 2, 1, None)
    add(client, options, second)
    bring_up(spark, options)
    (row,) = read_messages(spark, options.path, "orders").collect()
    assert (row.state, row.deliveries, row.attempts, row.failures, row.consumer) == ("acked", 2, 2, 1, "host:2")
    assert (row.waiting, row.handling, row.prefetch) == pytest.approx((3.0, 2.0, 0.5))
    assert (bytes(row.payload), row.headers, row.error_type) == (b"one", {"trace": "7"}, "ValueError")
    assert (row.first_claimed_at < row.last_claimed_at < row.finished_at, row.partition) == (True, 0)


@pytest.mark.promise("A message that ended and appears again is a violation, also days later.")
def test_a_message_that_ends_again_on_another_day_is_a_violation(spark, client, options, lake):
    """Its row stays as it was. A message whose beginning is not in the journal is not seen, and no violation."""
    lives = [told(START, "published", 1), told(START + 1, "claimed", 1, count=1), told(START + 2, "acked", 1)]
    add(client, options, [*lives, told(START + 3, "published", 2)])
    bring_up(spark, options)
    add(client, options, [told(START + DAY, "acked", 1), told(START + DAY, "acked", 3)])
    bring_up(spark, options)
    found = {one["kind"]: (one["messages"], one["ids"]) for one in lake.rows(lake.incidents)}
    assert found == {"violation": (1, [f"{1:032x}"]), "unseen": (1, [f"{3:032x}"])}
    rows = read_messages(spark, options.path, "orders").collect()
    assert Counter(row.state for row in rows) == {"acked": 2, "waiting": 1}
    assert statistics_of(spark, options.path, "orders").summary["conservation"]["verdict"] == "unbalanced"


@pytest.mark.in_full
def test_a_refresh_reads_only_what_is_new(spark, client, options, monkeypatch):
    """Neither files of the journal that are covered, nor messages that have ended, also after a compaction."""
    for day in range(3):
        story = JournalSample(60 + day, start=START + day * DAY, minutes=3).story(20)
        add(client, options, story.events)
        bring_up(spark, options)
    compact(CompactOptions(path=options.path, queue="orders", grace_seconds=0))
    events = add(client, options, JournalSample(70, start=START + 3 * DAY, minutes=3).story(20).events)
    read: list[tuple[str, str]] = []
    check = ArchiveTable.check

    def note(self, files, queue):
        read.extend((self.name, one.date) for one in files)
        check(self, files, queue)

    monkeypatch.setattr(ArchiveTable, "check", note)
    assert bring_up(spark, options).entries == len(events)
    assert {date for name, date in read if name == "journal"} == {"2026-09-24"}
    assert [date for name, date in read if name == "messages"] == []


@pytest.mark.in_full
def test_the_notebook_reads_the_tables(spark, client, options, monkeypatch):
    """Without Spark, as any reader of Delta tables."""
    story = JournalSample(61, minutes=3).story(60)
    add(client, options, story.events)
    bring_up(spark, options)
    monkeypatch.setenv("ARCHIVE", options.path)
    notebook = json.loads((ROOT / "examples" / "sales" / "messages.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    last = {event["id"]: event["event"] for event in story.events if event["id"] and event["event"] != "duplicate"}
    ended = [event for event in last.values() if event in LEAVING]
    assert names["ends"].to_numpy().sum() == len(names["messages"]) == len(ended)
    assert names["still"]["count"].sum() == len(last) - len(ended)


def test_without_an_archive_it_says_so(spark, options):
    with pytest.raises(ArchiveError, match="there is no archive of the queue 'orders'"):
        bring_up(spark, options)
