"""An archive has every entry of the journal once, whatever moment a run dies at, and says which it never saw."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest

from redis_message_queue.errors import ArchiveConflictError, ArchiveError, ConfigurationError, JournalError
from redis_message_queue.spark.jobs.archive import (
    ArchiveOptions,
    CompactOptions,
    archive,
    compact,
    read_archive,
)
from redis_message_queue.spark.jobs.files import HadoopFiles, LocalFiles, files_at
from redis_message_queue.spark.jobs.ledger import Ledger, Manifest, Retired
from redis_message_queue.spark.journal import Journal, StreamId
from tests.spark.archivist import archive_plainly, archived, compact_plainly, run_mortal
from tests.spark.journals import MINUTE, START, Story, Teller, fill_queue, write_journal


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"), partition_rows=20)


def serials(path: str) -> list[int]:
    return [row["serial"] for row in archived(path)]


# Runs


def test_every_run_adds_what_is_new_and_nothing_twice(client, options):
    story = Teller(1).story(120)
    first, second = Story(story.events[:200]), Story(story.events[200:])
    written = write_journal(client, options, first)
    assert archive_plainly(options).rows == 200
    assert archive_plainly(options).rows == 0
    written += write_journal(client, options, second)
    result = archive_plainly(options)
    assert (result.rows, result.last_serial, result.missing) == (len(second.events), len(written), [])
    assert [(row["serial"], row["event"], row["id"]) for row in archived(options.path)] == [
        (event["n"], event["event"], event["id"] or None) for event in written
    ]


def test_the_mark_lets_the_journal_be_trimmed_up_to_the_archive(client, options):
    write_journal(client, options, Teller(1).story(20))
    archive_plainly(options)
    with Journal(options) as journal:
        assert journal.state().mark == journal.census().last


def test_a_day_has_its_directory(client, options):
    at = [START - 2_000, START - 1_000, START, START + 5 * MINUTE]
    write_journal(client, options, Story([{"at": one, "event": "acked", "id": "a", "tenant": ""} for one in at]))
    assert archive_plainly(options).segments == 2
    found = sorted(str(one.relative_to(options.path)) for one in Path(options.path).glob("*/date=*/*"))
    assert [one.rsplit("-", 1)[0] for one in found] == [
        "queue=orders/date=2026-09-20/serials-0000000000000001-0000000000000002",
        "queue=orders/date=2026-09-21/serials-0000000000000003-0000000000000004",
    ]


def test_the_depth_is_that_of_the_last_serial(client, options):
    story = Teller(2).story(150)
    write_journal(client, options, story)
    fill_queue(client, options, story)
    archive_plainly(options)
    manifest = Ledger(LocalFiles(options.path), "orders").read()
    assert manifest.depth.serial == manifest.last_serial
    assert (manifest.depth.pending, manifest.depth.processing) == (story.pending, story.processing)


# Gaps


@pytest.mark.parametrize("announced", [True, False])
def test_serials_that_are_missing_are_recorded(client, options, announced):
    lost = (range(1, 11), range(60, 75))
    write_journal(client, options, Teller(3).story(100), lost=lost, announced=announced)
    result = archive_plainly(options)
    assert result.missing == [(1, 10), (60, 15)]
    assert Ledger(LocalFiles(options.path), "orders").read().missing == [(1, 10), (60, 15)]


def test_what_was_trimmed_between_two_runs_is_recorded(client, options):
    story = Teller(4).story(60)
    write_journal(client, options, Story(story.events[:50]))
    archive_plainly(options)
    write_journal(client, options, Story(story.events[50:]))
    with Journal(options) as journal:
        client.xtrim(journal.key, maxlen=len(story.events) - 60, approximate=False)
    result = archive_plainly(options)
    assert result.missing == [(51, 10)]
    assert result.missing_in_all == 10


def test_a_gap_that_the_archive_has_read_before_it_opened_is_none(client, options):
    """The journal may be cut behind the archive's back after the archive has read it."""
    write_journal(client, options, Teller(5).story(20))
    archive_plainly(options)
    write_journal(
        client,
        options,
        Story([{"event": "gap", "first": 3, "count": 4}]),
    )
    assert archive_plainly(options).missing_in_all == 0


# Deaths


@pytest.mark.parametrize("where", ["planned", "0", "1", "written", "committed", "marked"])
def test_a_run_that_dies_leaves_nothing_doubled_and_nothing_lost(server, client, options, where):
    """Killed between each two steps, and in the middle of a directory, at its first piece and at its second."""
    story = Teller(6).story(100)
    write_journal(client, options, Story(story.events[:150]))
    archive_plainly(options)
    write_journal(client, options, Story(story.events[150:]))
    for _ in range(2):
        run_mortal(server, "archive", where, options.path, 60)
        found = serials(options.path)
        assert found == list(range(1, len(found) + 1)), "what readers see is a whole beginning"
        with Journal(options) as journal:
            mark, ends = journal.state().mark, StreamId.parse(archived(options.path)[-1]["stream_id"])
            assert mark <= ends, "nothing may be trimmed that is not archived"
    archive_plainly(options)
    assert serials(options.path) == list(range(1, len(story.events) + 1))
    with Journal(options) as journal:
        assert journal.state().mark == journal.census().last


def test_a_run_that_finds_nothing_new_sets_the_mark_that_a_dead_one_did_not(server, client, options):
    write_journal(client, options, Teller(6).story(20))
    run_mortal(server, "archive", "committed", options.path, 1_000)
    with Journal(options) as journal:
        assert journal.state().mark is None
        assert archive_plainly(options).rows == 0
        assert journal.state().mark == journal.census().last


@pytest.mark.parametrize("where", ["0", "merged", "committed", "cleaned"])
def test_a_compaction_that_dies_changes_nothing_for_readers(server, client, options, where):
    story = Teller(7).story(100)
    for start in range(0, len(story.events), 50):
        write_journal(client, options, Story(story.events[start : start + 50]))
        archive_plainly(options)
    whole = archived(options.path)
    run_mortal(server, "compact", where, options.path, 150)
    assert archived(options.path) == whole
    compact_plainly(CompactOptions(path=options.path, queue="orders", target_rows=150, grace_seconds=0))
    assert archived(options.path) == whole
    ledger = Ledger(LocalFiles(options.path), "orders")
    live = {one.path for one in ledger.read().segments}
    there = {f"{one.parent.name}/{one.name}" for one in Path(options.path).glob("*/date=*/*")}
    assert there == live, "what dead runs left is gone"


# Compaction


def test_small_directories_become_large_ones_and_their_gaps_stay_known(client, options):
    story = Teller(8).story(100)
    events = story.events
    for start in range(0, len(events), 40):
        lost = (range(start + 5, start + 8),)
        write_journal(client, options, Story(events[start : start + 40]), lost=lost, announced=False)
        archive_plainly(options)
    ledger = Ledger(LocalFiles(options.path), "orders")
    whole, missing = archived(options.path), ledger.read().missing
    result = compact_plainly(CompactOptions(path=options.path, queue="orders", target_rows=100))
    assert result.segments_after < result.segments_before
    assert (archived(options.path), ledger.read().missing) == (whole, missing)
    again = compact_plainly(CompactOptions(path=options.path, queue="orders", target_rows=100))
    assert (again.rows, again.segments_after) == (0, result.segments_after)


def test_whoever_reads_while_it_is_compacted_can_go_on(client, options):
    """What was replaced stays for a day, and is then removed by the next run."""
    story = Teller(9).story(40)
    for start in range(0, len(story.events), 30):
        write_journal(client, options, Story(story.events[start : start + 30]))
        archive_plainly(options)
    old = Ledger(LocalFiles(options.path), "orders").read()
    compact_plainly(CompactOptions(path=options.path, queue="orders"))
    assert all(Path(options.path, "queue=orders", one.path).exists() for one in old.segments)
    patient = ArchiveOptions(url=options.url, queue="orders", path=options.path, grace_seconds=0)
    assert archive_plainly(patient).removed == len(old.segments)


# Two at once


def test_of_two_runs_at_once_one_is_told_to_run_again(client, options):
    story = Teller(10).story(50)
    write_journal(client, options, story)

    def another_was_faster(progress):
        if progress.step == "written":
            archive_plainly(options)

    with pytest.raises(ArchiveConflictError, match=r"another run has archived 'orders' meanwhile up to serial"):
        archive_plainly(options, another_was_faster)
    assert serials(options.path) == list(range(1, len(story.events) + 1))


def test_a_compaction_at_the_same_time_does_no_harm(client, options):
    story = Teller(11).story(60)
    for part in (story.events[:40], story.events[40:80]):
        write_journal(client, options, Story(part))
        archive_plainly(options)
    write_journal(client, options, Story(story.events[80:]))

    def compacting(progress):
        if progress.step == "written":
            compact_plainly(CompactOptions(path=options.path, queue="orders"))

    archive_plainly(options, compacting)
    assert serials(options.path) == list(range(1, len(story.events) + 1))
    assert len(Ledger(LocalFiles(options.path), "orders").read().segments) == 2


def test_a_file_that_is_there_is_not_replaced(tmp_path):
    files = LocalFiles(str(tmp_path))
    assert files.create("a/b.json", b"first")
    assert not files.create("a/b.json", b"second")
    assert files.read("a/b.json") == b"first"
    assert [one.name for one in files.list("a")] == ["b.json"], "and nothing is left behind"


def test_of_many_changes_at_once_none_is_lost(tmp_path):
    """Each change is made from the state that the one before it has left."""
    ledger = Ledger(LocalFiles(str(tmp_path)), "orders")

    def add(number: int) -> None:
        for place in range(5):
            mine = Retired(f"{number}-{place}", 0)
            ledger.commit(lambda now: dataclasses.replace(now, retired=(*now.retired, mine)))  # noqa: B023 - at once

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    found = ledger.read()
    assert found.version == 20
    assert {one.path for one in found.retired} == {f"{number}-{place}" for number in range(4) for place in range(5)}


# What cannot be


def test_a_journal_that_has_begun_anew_is_refused(client, options):
    write_journal(client, options, Teller(12).story(50))
    archive_plainly(options)
    client.flushall()
    write_journal(client, options, Teller(13, start=START + 60 * MINUTE).story(80))
    with pytest.raises(ArchiveError, match=r"is not the one that this archive was made from.*under another path"):
        archive_plainly(options)


def test_a_queue_without_a_journal_is_an_error_and_leaves_no_files(client, options):
    with pytest.raises(JournalError, match="has no journal"):
        archive_plainly(options)
    assert not Path(options.path).exists()


def test_there_is_nothing_to_compact_where_nothing_was_archived(tmp_path):
    with pytest.raises(ArchiveError, match=r"no archive of the queue 'orders' at .*: run archive first"):
        compact_plainly(CompactOptions(path=str(tmp_path), queue="orders"))


def test_a_manifest_of_something_else_is_refused(tmp_path):
    place = tmp_path / "queue=orders" / "_manifests" / f"{1:020}.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    with pytest.raises(ArchiveError, match="cannot be read"):
        Ledger(LocalFiles(str(tmp_path)), "orders").read()


@pytest.mark.parametrize("given", [{"path": ""}, {"partition_rows": 0}, {"segment_rows": True}, {"grace_seconds": -1}])
def test_options_that_cannot_work_are_refused(given):
    with pytest.raises(ConfigurationError):
        ArchiveOptions(**{"url": "redis://localhost", "queue": "orders", "path": "archive"} | given)


def test_a_path_of_another_scheme_needs_spark():
    with pytest.raises(ConfigurationError, match=r"scheme 's3a' needs a Spark session"):
        files_at("s3a://bucket/archive")


# With Spark


def test_spark_archives_compacts_and_reads_it(spark, client, options):
    written = write_journal(client, options, Teller(14, minutes=5).story(150), lost=(range(40, 44),))
    split = ArchiveOptions(url=options.url, queue="orders", path=options.path, segment_rows=200, partition_rows=60)
    heard = []
    result = archive(spark, split, heard.append)
    assert (result.rows, result.missing) == (len(written), [(40, 4)])
    assert {one.step for one in heard} == {"planned", "written", "committed", "marked"}
    json.dumps(result.as_dict())
    compacted = compact(spark, CompactOptions(path=options.path, queue="orders"))
    assert (compacted.segments_before, compacted.segments_after, compacted.rows) == (result.segments, 1, len(written))
    rows = read_archive(spark, options.path, "orders")
    found = rows.orderBy("serial").select("serial", "event", "id", "tenant", "queue", "date").collect()
    assert [(row.serial, row.event, row.id or "", row.tenant or "") for row in found] == [
        (event["n"], event["event"], event.get("id", ""), event.get("tenant", "")) for event in written
    ]
    assert {(row.queue, row.date) for row in found} == {("orders", date(2026, 9, 21))}
    times = rows.orderBy("serial").selectExpr("unix_micros(at) as at").collect()
    assert [row["at"] for row in times] == [event.get("at") for event in written]  # a gap has no time


def test_files_of_hadoop_behave_like_local_ones(spark, tmp_path):
    files = HadoopFiles(spark, f"file://{tmp_path}/there")
    assert files.list("") == []
    assert files.create("a/one.json", b"\x00\xff first")
    assert not files.create("a/one.json", b"second")
    assert files.read("a/one.json") == b"\x00\xff first"
    files.write("a/one.json", b"third")
    assert files.read("a/one.json") == b"third"
    assert [(one.name, one.is_directory) for one in files.list("a")] == [("one.json", False)]
    files.remove("a")
    assert files.list("a") == []
    ledger = Ledger(files, "orders / all")
    ledger.commit(lambda now: now)
    assert ledger.read() == Manifest("orders / all", version=1)


def test_a_spark_driver_killed_while_it_writes_leaves_nothing_doubled_and_nothing_lost(
    spark, server, client, options, tmp_path
):
    """The files of dead tasks lie there, and no manifest names them."""
    written = write_journal(client, options, Teller(15).story(200))
    program = """
        import os, sys, threading, time
        from pathlib import Path
        from redis_message_queue.spark import session
        from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
        from redis_message_queue.spark.driver import QUICK_START

        url, path = sys.argv[1:]
        spark = session("mortal", "local[2]", **QUICK_START)

        def die_in_the_middle():
            while not any(Path(path).glob("*/date=*/*/_temporary/**/*.parquet")):
                time.sleep(0.001)
            os.kill(os.getpid(), 9)

        threading.Thread(target=die_in_the_middle, daemon=True).start()
        archive(spark, ArchiveOptions(url=url, queue="orders", path=path, partition_rows=40))
        """
    place = tmp_path / "mortal.py"
    place.write_text(textwrap.dedent(program))
    root = Path(__file__).parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(root), os.environ.get("PYTHONPATH", ""))),
        "TMPDIR": str(tmp_path),  # a driver that is killed does not clean up behind it
    }
    ended = subprocess.run(
        [sys.executable, place, server.url, options.path], capture_output=True, text=True, timeout=300, env=environment
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert any(Path(options.path).glob("*/date=*/*")), "it had begun to write"
    assert serials(options.path) == []
    patient = ArchiveOptions(url=server.url, queue="orders", path=options.path, grace_seconds=0)
    assert archive(spark, patient).rows == len(written)
    found = read_archive(spark, options.path, "orders").selectExpr("count(*)", "count(distinct serial)").first()
    assert tuple(found) == (len(written), len(written))
