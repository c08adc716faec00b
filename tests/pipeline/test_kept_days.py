"""A report built day by day says what one built at once says, whatever happened to the archive or to what was kept."""

import json
import math
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_message_queue.spark.jobs.archive import ArchiveOptions, CompactOptions, compact, journal_table
from redis_message_queue.spark.jobs.archive_tables import Location, location_of
from redis_message_queue.spark.jobs.job import JobProgress
from redis_message_queue.spark.jobs.report import ReportOptions, Window, report, statistics_of
from redis_message_queue.spark.jobs.statistics import ReportStatistics
from redis_message_queue.values.errors import ArchiveError
from tests.depth import often
from tests.pipeline import expected_statistics
from tests.pipeline.journal_samples import MINUTE, START, Event, Events, JournalSample, fill_queue, write_journal
from tests.pipeline.plain_archiver import NO_SESSION, archive_plainly

pytestmark = pytest.mark.topic("Data pipeline")

DAY = 1440 * MINUTE
MIDNIGHTS = [START + day * DAY for day in range(1, often(3, 4))]
DATES = [datetime.fromtimestamp(at / 1e6, UTC).date() for at in (START, *MIDNIGHTS)]


def several_days(messages: int = often(30, 60)) -> Events:
    """Messages around each midnight, many of which live past it."""
    stories = [
        JournalSample(number, start=at - 5 * MINUTE, minutes=10).story(messages) for number, at in enumerate(MIDNIGHTS)
    ]
    told = sorted((event for story in stories for event in story.events), key=lambda one: one["at"])
    lists = ("pending", "processing", "delayed")
    return Events(told, **{name: [one for story in stories for one in getattr(story, name)] for name in lists})


def as_json(found: ReportStatistics) -> dict:
    return json.loads(json.dumps(found.as_dict(), default=lambda one: one.isoformat()))


class Archived:
    """An archive, and a report on it that is built step by step."""

    def __init__(self, client, options: ArchiveOptions, output: Path) -> None:
        self.client, self.options, self.output = client, options, output
        self.events: list[Event] = []
        self.heard: list[JobProgress] = []
        self.table = journal_table(location_of(options.path))

    def add(self, events: list[Event]) -> None:
        self.events += write_journal(self.client, self.options, Events(events))
        archive_plainly(self.options)

    def report(self, **given) -> dict:
        self.heard.clear()
        options = ReportOptions(path=self.options.path, queue="orders", output=str(self.output), **given)
        return report(NO_SESSION, options, self.heard.append).statistics

    def at_once(self) -> dict:
        return as_json(statistics_of(NO_SESSION, self.options.path, "orders"))

    def counted(self) -> list[str]:
        """The days that the last report has counted."""
        return sorted(one.detail for one in self.heard if one.step == "counted")

    def is_the_same(self, **given) -> None:
        assert self.report(**given) == self.at_once()


@pytest.fixture
def archived(server, client, tmp_path) -> Archived:
    options = ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"))
    return Archived(client, options, tmp_path / "report")


class Saved:
    """Several days, which a report has kept: made once, and brought back for every test as they were."""

    def __init__(self, client: redis.Redis, url: str, place: Path) -> None:
        self._place, self._copy = place / "now", place / "saved"
        self._options = ArchiveOptions(url=url, queue="orders", path=str(self._place / "archive"))
        archived, story = Archived(client, self._options, self._place / "report"), several_days()
        fill_queue(client, self._options, story)
        archived.add(story.events)
        assert archived.report()["summary"]["conservation"]["verdict"] == "balanced"
        assert archived.counted() == [str(one) for one in DATES]
        self._events = archived.events
        self._keys: dict[bytes, Any] = {key: client.dump(key) for key in client.scan_iter()}
        self._place.rename(self._copy)

    def bring_back(self, client: redis.Redis) -> Archived:
        """At the same path: what a report keeps belongs to one archive."""
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.copytree(self._copy, self._place)
        for key, value in self._keys.items():
            client.restore(key, 0, value)
        archived = Archived(client, self._options, self._place / "report")
        archived.events += self._events
        return archived


@pytest.fixture(scope="module")
def saved(server, tmp_path_factory) -> Saved:
    with server.client() as client:
        client.flushall()
        return Saved(client, server.url, tmp_path_factory.mktemp("kept"))


@pytest.fixture
def kept(saved, client) -> Archived:
    return saved.bring_back(client)


@pytest.mark.promise("A report that is built day by day has the figures of one that is built at once.")
def test_a_report_in_steps_has_the_figures_of_one_at_once(archived):
    """Only days that got entries are counted, and messages that are open at midnight are not lost."""
    story = several_days()
    fill_queue(archived.client, archived.options, story)
    size = math.ceil(len(story.events) / often(2, 7))
    for start in range(0, len(story.events), size):
        step = story.events[start : start + size]
        archived.add(step)
        archived.is_the_same()
        dates = {str(datetime.fromtimestamp(one["at"] / 1e6, UTC).date()) for one in step}
        assert archived.counted() == sorted(dates)
    expected_statistics.agrees(statistics_of(NO_SESSION, archived.options.path, "orders"), archived.events)
    whole = archived.report()
    assert archived.counted() == [], "nothing has changed"
    assert archived.report(fresh=True) == whole
    assert len(archived.counted()) == len(DATES)


@pytest.mark.in_full
def test_a_day_is_not_counted_again_because_its_files_were_merged(kept):
    archive = CompactOptions(path=kept.options.path, queue="orders", grace_seconds=0)
    kept.add([one | {"at": one["at"] + DAY} for one in JournalSample(9, start=MIDNIGHTS[-1]).story(20).events])
    kept.is_the_same()
    assert kept.counted() == [str(DATES[-1] + timedelta(days=1))]
    kept.add([one | {"at": one["at"] + DAY} for one in JournalSample(8, start=MIDNIGHTS[-1]).story(20).events])
    compact(archive)
    kept.is_the_same()
    assert kept.counted() == [str(DATES[-1] + timedelta(days=1))], "it has new entries as well"
    before = {one.path for one in kept.table.files("orders")}
    kept.table.open().optimize.z_order(["serial"])
    compact(archive)
    assert before != {one.path for one in kept.table.files("orders")}
    kept.is_the_same()
    assert kept.counted() == []


@pytest.mark.in_full
def test_retention_removes_a_day_and_leaves_the_others_as_they_are(kept):
    keep_days = (datetime.now(UTC).date() - DATES[1]).days
    compact(CompactOptions(path=kept.options.path, queue="orders", grace_seconds=0, keep_days=keep_days))
    kept.is_the_same()
    assert kept.counted() == []
    assert kept.report()["summary"]["conservation"]["verdict"] == "unknown", "the first entries are gone"


@pytest.mark.in_full
def test_entries_that_come_late_are_counted(kept):
    """Also if they fill a day that was empty by then."""
    table, date = kept.table, str(DATES[1])
    rows = table.read_locally("orders", table.schema.names, lambda one: one.date == date)
    table.open().delete(f"date = '{date}'")
    kept.is_the_same()
    assert kept.counted() == []
    for part in (rows.slice(0, 30), rows.slice(30)):
        batches = part.select(table.file_schema.names).cast(table.file_schema).to_batches()
        file = table.write_file("orders", date, batches)
        table.commit([file], "orders", "late", table.open().transaction_version("late"), part.num_rows)
        kept.is_the_same()
        assert kept.counted() == [date]
    assert kept.report()["summary"]["conservation"]["verdict"] == "balanced"


@pytest.mark.in_full
def test_a_row_that_was_changed_in_place_is_counted(kept):
    """A change of entries is told from a compaction by the log, although the number of rows is the same."""
    kept.table.open().update(updates={"tenant": "'other'"}, predicate="event = 'acked'")
    kept.is_the_same()
    assert "other" in {one["tenant"] for one in kept.report()["tables"]["tenants"]}


@pytest.mark.in_full
@pytest.mark.promise("A report names files that are missing from the archive, also of days whose figures it has kept.")
def test_a_missing_file_is_named_although_its_day_is_kept(kept):
    gone = next(one for one in kept.table.files("orders") if one.date == str(DATES[0]))
    Path(kept.table.location.uri, gone.path).unlink()
    with pytest.raises(ArchiveError, match=rf"{gone.path} \({gone.rows} rows\) is missing"):
        kept.report()
    kept.table.open().repair()
    found = kept.report()
    assert found == kept.at_once()
    assert found["summary"]["conservation"]["missing_serials"] == gone.rows


@pytest.mark.in_full
def test_a_message_that_comes_back_after_it_has_left_is_odd(kept):
    """It was whole on its day, and its figures are taken back from there."""
    done = next(one for one in kept.events if one["event"] == "acked")
    at = MIDNIGHTS[-1] + DAY
    again = {"id": done["id"], "tenant": done["tenant"]}
    kept.add([{"at": at, "event": "claimed", "count": 1, **again}, {"at": at + 9, "event": "acked", **again}])
    whole = kept.at_once()
    for _ in range(2):  # what is kept now knows of it
        assert kept.report() == whole
        found = kept.report(since=MIDNIGHT_TEXT)
        assert found["summary"]["conservation"]["odd"] == 1
    expected_statistics.agrees(statistics_of(NO_SESSION, kept.options.path, "orders"), kept.events)


MIDNIGHT_TEXT = str(DATES[1])


WINDOWS = (
    (MIDNIGHTS[0], MIDNIGHTS[1]),
    (MIDNIGHTS[0] + 2 * MINUTE + 17, None),
    (None, MIDNIGHTS[1] - MINUTE - 5),
    (MIDNIGHTS[1] + MINUTE, MIDNIGHTS[1] + 4 * MINUTE),
)


@pytest.mark.in_full
def test_a_window_may_cut_days_that_are_kept(kept, subtests):
    for since, until in WINDOWS:
        with subtests.test(since=since, until=until):
            window = Window(*(None if at is None else datetime.fromtimestamp(at / 1e6, UTC) for at in (since, until)))
            whole = statistics_of(NO_SESSION, kept.options.path, "orders", window=window)
            expected_statistics.agrees(whole, kept.events, since, until)
            assert kept.report(since=window.since, until=window.until) == as_json(whole)
    kept.is_the_same()
    assert kept.counted() == [], "days that the windows cut are still kept"


def spoil(suffix: str, change: Callable[[bytes], bytes | None]) -> Callable[[Path], None]:
    def work(place: Path) -> None:
        for file in sorted(place.glob(f"*{suffix}"))[:1]:
            content = change(file.read_bytes())
            file.unlink() if content is None else file.write_bytes(content)

    return work


def reformat(name: str, value: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(json.loads(content) | {name: value}).encode()


DAMAGES = {
    "a short list": spoil(".json", lambda content: content[:-20]),
    "no list": spoil(".json", lambda content: b"[]"),
    "another format": spoil(".json", reformat("format", "0")),
    "another queue": spoil(".json", reformat("queue", "invoices")),
    "another table": spoil(".json", reformat("table", "another")),
    "another name": spoil(".json", lambda content: content.replace(b".details", b".other")),
    "a changed day": spoil(".day", lambda content: content[:-1] + b"x"),
    "no day": spoil(".day", lambda content: None),
    "longer details": spoil(".details", lambda content: content + b"x"),
    "fewer ids": spoil(".ids", lambda content: content[8:]),
}


@pytest.mark.in_full
@pytest.mark.promise("What a report has kept is used only if it belongs to the archive and nobody has changed it.")
def test_what_was_damaged_or_is_foreign_is_computed_again(saved, client, subtests):
    later = [one | {"at": one["at"] + DAY} for one in JournalSample(7, start=MIDNIGHTS[-1]).story(10).events]
    whole = None
    for name in list(DAMAGES)[often(6, 0) :: often(4, 1)]:
        with subtests.test(damage=name):
            client.flushall()
            kept = saved.bring_back(client)
            DAMAGES[name](kept.output / "kept")
            kept.add(later)
            whole = whole or kept.at_once()
            assert kept.report() == whole
            assert len(kept.counted()) > 1
            assert any("kept is of another" in one.detail or "was changed since" in one.detail for one in kept.heard)
            assert kept.report() == whole
            assert kept.counted() == []


@pytest.mark.in_full
def test_the_directory_has_only_what_is_used(kept):
    place = kept.output / "kept"
    kept.add([one | {"at": one["at"] + DAY} for one in JournalSample(6, start=MIDNIGHTS[-1]).story(10).events])
    kept.report()
    kept.report(fresh=True)
    assert len(list(place.glob("*.day"))) == len(DATES) + 1
    assert len(list(place.iterdir())) == 3 * (len(DATES) + 1) + 1


@pytest.mark.parametrize("size", [0, 1, 1 << 19, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_a_file_of_any_size_is_written_and_read(tmp_path: Path, size: int) -> None:
    """The figures of a day with many messages have megabytes."""
    content = bytes(number % 251 for number in range(min(size, 1_000))) * (size // 1_000 + 1)
    place = Location(str(tmp_path))
    place.write("day.bin", content[:size])
    assert place.read("day.bin") == content[:size]
