"""An archive has every entry of the journal once, whatever moment a run dies at, and says which it never saw."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import date
from pathlib import Path

import duckdb
import polars
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from redis_message_queue.errors import ArchiveConflictError, ArchiveError, ConfigurationError, JournalError
from redis_message_queue.spark import journal as journal_module
from redis_message_queue.spark.jobs import archive as archive_job
from redis_message_queue.spark.jobs import archive_tables
from redis_message_queue.spark.jobs.archive import (
    ArchiveOptions,
    CompactOptions,
    archive,
    compact,
    journal_table,
    read_archive,
)
from redis_message_queue.spark.jobs.archive_tables import LITTLE, location_of
from redis_message_queue.spark.jobs.replay import ReplayOptions, replay
from redis_message_queue.spark.jobs.report import ReportOptions, report
from redis_message_queue.spark.journal import JournalReader, StreamId
from tests.spark.journal_samples import MINUTE, START, Events, JournalSample, write_journal
from tests.spark.plain_archiver import archive_plainly, archived, run_mortal
from tests.spark.shared_session import jobs_so_far

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"), partition_rows=20)


def serials(path: str) -> list[int]:
    return [row["serial"] for row in archived(path)]


def files_of(path: str) -> list[Path]:
    """The files of the journal, those that no commit names included."""
    return sorted(Path(path, "journal").glob("**/*.parquet"))


def archive_in_parts(client, options: ArchiveOptions, story: Events, size: int) -> None:
    for start in range(0, len(story.events), size):
        write_journal(client, options, Events(story.events[start : start + size]))
        archive_plainly(options)


# Runs


def test_every_run_adds_what_is_new_and_nothing_twice(client, options):
    story = JournalSample(1).story(120)
    first, second = Events(story.events[:200]), Events(story.events[200:])
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
    write_journal(client, options, JournalSample(1).story(20))
    archive_plainly(options)
    with JournalReader(options) as journal:
        assert journal.state().mark == journal.snapshot().last


def test_a_day_has_its_files(client, options):
    at = [START - 2_000, START - 1_000, START, START + 5 * MINUTE]
    write_journal(client, options, Events([{"at": one, "event": "acked", "id": "a", "tenant": ""} for one in at]))
    assert archive_plainly(options).files == 2
    found = journal_table(location_of(options.path)).files("orders")
    assert sorted((one.date, one.rows) for one in found) == [("2026-09-20", 2), ("2026-09-21", 2)]


def test_two_archives_of_one_queue_are_independent(client, options, tmp_path):
    """The mark of one says nothing of the other, as long as the journal was not trimmed."""
    other = ArchiveOptions(url=options.url, queue="orders", path=str(tmp_path / "other"), partition_rows=20)
    story = JournalSample(2).story(60)
    write_journal(client, options, Events(story.events[:50]))
    archive_plainly(other)
    write_journal(client, options, Events(story.events[50:]))
    archive_plainly(options)
    assert archive_plainly(other).missing == []
    assert serials(other.path) == serials(options.path) == list(range(1, len(story.events) + 1))


# Gaps


@pytest.mark.parametrize("announced", [True, False])
def test_serials_that_are_missing_are_named(client, options, announced):
    lost = (range(1, 11), range(60, 75))
    write_journal(client, options, JournalSample(3).story(100), lost=lost, announced=announced)
    assert archive_plainly(options).missing == [(1, 10), (60, 15)]


def test_what_was_trimmed_between_two_runs_is_named(client, options):
    story = JournalSample(4).story(60)
    write_journal(client, options, Events(story.events[:50]))
    archive_plainly(options)
    write_journal(client, options, Events(story.events[50:]))
    with JournalReader(options) as journal:
        client.xtrim(journal.key, maxlen=len(story.events) - 60, approximate=False)
    assert archive_plainly(options).missing == [(51, 10)]


def test_a_gap_that_the_archive_has_read_before_it_opened_is_none(client, options):
    """The journal may be cut behind the archive's back after the archive has read it."""
    write_journal(client, options, JournalSample(5).story(20))
    archive_plainly(options)
    write_journal(client, options, Events([{"event": "gap", "first": 3, "count": 4}]))
    assert archive_plainly(options).missing == []


# Deaths


@pytest.mark.promise(
    "An archive contains every journal entry once, whenever a run is killed, and only archived entries are trimmed."
)
@pytest.mark.parametrize(
    "where",
    [
        *("0", "written", "committed"),
        *(pytest.param(one, marks=pytest.mark.in_full) for one in ("planned", "1", "marked")),
    ],
)
def test_a_run_that_dies_leaves_nothing_doubled_and_nothing_lost(server, client, options, where):
    """Killed between each two steps, and between the files of a commit."""
    story = JournalSample(6).story(100)
    write_journal(client, options, Events(story.events[:150]))
    archive_plainly(options)
    write_journal(client, options, Events(story.events[150:]))
    for _ in range(2):
        run_mortal(server, where, options.path, 60)
        found = serials(options.path)
        assert found == list(range(1, len(found) + 1)), "what readers see is a whole beginning"
        with JournalReader(options) as journal:
            mark, ends = journal.state().mark, StreamId.parse(archived(options.path)[-1]["stream_id"])
            assert mark is not None and mark <= ends, "nothing may be trimmed that is not archived"
    archive_plainly(options)
    assert serials(options.path) == list(range(1, len(story.events) + 1))
    with JournalReader(options) as journal:
        assert journal.state().mark == journal.snapshot().last


def test_a_run_that_finds_nothing_new_sets_the_mark_that_a_dead_one_did_not(server, client, options):
    write_journal(client, options, JournalSample(6).story(20))
    run_mortal(server, "committed", options.path, 1_000)
    with JournalReader(options) as journal:
        assert journal.state().mark is None
        assert archive_plainly(options).rows == 0
        assert journal.state().mark == journal.snapshot().last


def test_large_payloads_are_written_and_read_in_small_portions(client, options, monkeypatch):
    monkeypatch.setattr(journal_module, "BATCH_BYTES", 20_000)
    whole = ArchiveOptions(url=options.url, queue="orders", path=options.path)
    write_journal(
        client,
        whole,
        Events([{"at": START + one, "event": "published", "id": f"{one}", "payload": "x" * 900} for one in range(300)]),
    )
    assert archive_plainly(whole).files == 1
    parquet = pq.ParquetFile(files_of(options.path)[0])
    assert parquet.num_row_groups >= 300 * 900 / 20_000
    size = sum(parquet.metadata.row_group(place).total_byte_size for place in range(parquet.num_row_groups))
    monkeypatch.setattr(archive_tables, "READ_AT_ONCE", size // 10)
    table = journal_table(location_of(options.path))
    batches = list(table.batch_reader(("serial", "payload"))(table.files("orders")))
    assert max(batch.num_rows for batch in batches) <= 30
    assert [one for batch in batches for one in batch.column("serial").to_pylist()] == list(range(1, 301))


# Compaction


def test_small_files_become_large_ones_with_the_same_rows(client, options):
    story = JournalSample(8).story(100)
    archive_in_parts(client, options, story, 40)
    whole, before = archived(options.path), len(files_of(options.path))
    result = compact(CompactOptions(path=options.path, queue="orders"))
    assert (result.files_before, result.files_after, result.rows_deleted) == (before, 1, 0)
    assert archived(options.path) == whole
    assert len(files_of(options.path)) == before + 1, "who reads the old state can go on"
    write_journal(client, options, JournalSample(9, start=START + 60 * MINUTE).story(5))
    archive_plainly(options)
    found = serials(options.path)
    assert found == list(range(1, len(found) + 1)), "the next run knows where the compacted archive ends"


def test_replaced_files_and_those_of_dead_runs_are_removed(server, client, options):
    archive_in_parts(client, options, JournalSample(9).story(40), 30)
    whole = archived(options.path)
    write_journal(client, options, JournalSample(9, start=START + 60 * MINUTE).story(5))
    run_mortal(server, "written", options.path, 1_000)
    result = compact(CompactOptions(path=options.path, queue="orders", grace_seconds=0))
    assert result.files_removed >= result.files_before
    assert len(files_of(options.path)) == result.files_after == 1
    assert archived(options.path) == whole


def test_a_file_is_counted_as_removed_once(client, options):
    archive_in_parts(client, options, JournalSample(9).story(40), 30)
    wanted = CompactOptions(path=options.path, queue="orders", grace_seconds=0)
    before = set(Path(options.path).glob("**/*.parquet"))
    removed = [compact(wanted).files_removed for _ in range(3)]
    gone = before - set(Path(options.path).glob("**/*.parquet"))
    assert len(gone) > 1
    assert removed == [len(gone), 0, 0]


def test_old_dates_are_deleted_and_the_archive_goes_on(client, options):
    write_journal(client, options, JournalSample(8).story(30))
    last = archive_plainly(options).last_serial
    assert compact(CompactOptions(path=options.path, queue="orders", keep_days=1)).rows_deleted == last
    assert archived(options.path) == []
    write_journal(client, options, JournalSample(9, start=START + 60 * MINUTE).story(5))
    result = archive_plainly(options)
    assert (result.missing, serials(options.path)) == ([], list(range(last + 1, last + 1 + result.rows)))


def test_an_odd_name_of_a_queue_is_only_a_name(server, client, tmp_path):
    name = "o'neil/ü %41"
    for queue in (name, "orders"):
        odd = ArchiveOptions(url=server.url, queue=queue, path=str(tmp_path / "archive"), partition_rows=7)
        write_journal(client, odd, JournalSample(3).story(10))
        archive_plainly(odd)
    whole = archived(odd.path, name)
    compact(CompactOptions(path=odd.path, queue=name))
    assert archived(odd.path, name) == whole
    compact(CompactOptions(path=odd.path, queue=name, keep_days=1))
    assert (archived(odd.path, name), len(archived(odd.path))) == ([], len(whole))


# Two at once


@pytest.mark.promise(
    "An archive contains every journal entry once, whenever a run is killed, and only archived entries are trimmed."
)
@pytest.mark.parametrize("moment", ["planned", "written"])
def test_of_two_runs_at_once_one_is_told_to_run_again(client, options, moment):
    story = JournalSample(10).story(50)
    write_journal(client, options, story)
    others = []

    def another_was_faster(progress):
        if progress.step == moment and not others:
            others.append("runs")
            archive_plainly(options)

    with pytest.raises(ArchiveConflictError, match=r"another run has archived 'orders' meanwhile"):
        archive_plainly(options, another_was_faster)
    assert serials(options.path) == list(range(1, len(story.events) + 1))


def test_of_two_commits_at_the_same_moment_one_fails(client, options, monkeypatch):
    """Both have seen the same state: Delta itself lets only one of them in."""
    write_journal(client, options, JournalSample(10).story(50))
    commit = DeltaTable.create_write_transaction

    def overtaken(self, *args, **kwargs):
        monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
        archive_plainly(options)
        return commit(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    with pytest.raises(ArchiveConflictError, match="another run has changed the archive"):
        archive_plainly(options)
    found = serials(options.path)
    assert found == list(range(1, len(found) + 1))


def test_a_compaction_at_the_same_time_does_no_harm(client, options):
    story = JournalSample(11).story(60)
    for part in (story.events[:40], story.events[40:80]):
        write_journal(client, options, Events(part))
        archive_plainly(options)
    write_journal(client, options, Events(story.events[80:]))

    def compacting(progress):
        if progress.step == "written":
            compact(CompactOptions(path=options.path, queue="orders"))

    archive_plainly(options, compacting)
    assert serials(options.path) == list(range(1, len(story.events) + 1))


# Other journals


def test_after_a_flush_the_archive_goes_on_with_the_new_journal(client, options):
    first = write_journal(client, options, JournalSample(12).story(50))
    archive_plainly(options)
    client.flushall()
    second = write_journal(client, options, JournalSample(13, start=START + 60 * MINUTE).story(80))
    assert archive_plainly(options).rows == len(second)
    found = archived(options.path)
    assert len(found) == len(first) + len(second)
    assert len({row["journal"] for row in found}) == 2


def test_a_server_that_was_restored_to_an_older_state_is_refused(client, options):
    write_journal(client, options, JournalSample(12).story(50))
    archive_plainly(options)
    with JournalReader(options) as journal:
        client.delete(journal.key)
        client.hset(journal.state_key, "journal_serial", 0)
    write_journal(client, options, JournalSample(13, start=START + 60 * MINUTE).story(5))
    with pytest.raises(ArchiveError, match=r"goes to serial \d+, but its journal ends at .*under another path"):
        archive_plainly(options)


def test_a_queue_without_a_journal_is_an_error_and_leaves_no_files(client, options):
    with pytest.raises(JournalError, match="has no journal"):
        archive_plainly(options)
    assert not Path(options.path).exists()


# Damage


def delete(file: Path) -> str:
    file.unlink()
    return r"\.parquet \(\d+ rows\) is missing"


def truncate(file: Path) -> str:
    os.truncate(file, file.stat().st_size - 10)
    return r"\.parquet \(\d+ rows\) was changed"


@pytest.mark.promise("If files of an archive are missing or damaged, every job that reads it says which.")
@pytest.mark.parametrize("damage", [delete, truncate])
def test_a_file_that_is_missing_or_damaged_is_named(spark, client, options, damage: Callable[[Path], str]):
    write_journal(client, options, JournalSample(14).story(50))
    archive_plainly(options)
    complaint = damage(files_of(options.path)[0])
    with pytest.raises(ArchiveError, match=rf"the archive at .* is damaged: .*{complaint}.* Restore these files"):
        read_archive(spark, options.path, "orders")


@pytest.mark.promise("If files of an archive are missing or damaged, every job that reads it says which.")
def test_a_file_with_fewer_rows_than_its_commit_says_is_named(client, options):
    """Even if it was padded to its old size."""
    write_journal(client, options, JournalSample(14).story(50))
    archive_plainly(options)
    file = files_of(options.path)[0]
    rows = pq.ParquetFile(file).read()
    pq.write_table(rows.slice(1), file)
    with pytest.raises(ArchiveError, match=r"\.parquet has \d+ of its rows"):
        archived(options.path)


def change(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x40
    file.write_bytes(content)


@pytest.mark.promise("If files of an archive are missing or damaged, every job that reads it says which.")
def test_a_changed_byte_among_the_rows_is_noticed_wherever_it_is(client, options):
    """Without checksums most of them would be read as other rows."""
    write_journal(client, options, JournalSample(14).story(12))
    archive_plainly(options)
    whole, file = archived(options.path), files_of(options.path)[0]
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for place in range(4, footer, 23):
        change(file, place)
        try:
            assert archived(options.path) == whole  # a few bytes have no meaning
        except ArchiveError as error:
            said = str(error)
            assert re.search(rf"is damaged: queue=orders/date=[\d-]+/{file.name} .*Restore these files", said), said
        file.write_bytes(content)


@pytest.mark.promise("If files of an archive are missing or damaged, every job that reads it says which.")
def test_what_is_read_from_a_changed_footer_is_an_error_that_names_the_file(client, options):
    write_journal(client, options, JournalSample(14).story(12))
    archive_plainly(options)
    file = files_of(options.path)[0]
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    named = 0
    for place in range(footer, len(content), 11):
        change(file, place)
        try:
            archived(options.path)
        except ArchiveError as error:
            assert file.name in str(error)
            named += 1
        file.write_bytes(content)
    assert named


@pytest.mark.promise("If files of an archive are missing or damaged, every job that reads it says which.")
def test_jobs_name_the_file_in_which_a_byte_was_changed(spark, server, client, options):
    write_journal(client, options, JournalSample(14, payloads=True).story(50))
    archive_plainly(options)
    file = max(files_of(options.path), key=lambda one: one.stat().st_size)
    for place in column_pages(file, "id"):
        change(file, place)
    said = rf"the archive at .* is damaged: queue=orders/date=[\d-]+/{file.name} .* Restore these files"
    with pytest.raises(ArchiveError, match=said):
        report(spark, ReportOptions(path=options.path, queue="orders", output=f"{options.path}-report"))
    with pytest.raises(ArchiveError, match=said):
        replay(spark, ReplayOptions(url=server.url, queue="orders", archive=options.path, where="delivery_count > 0"))


@pytest.mark.promise("If files of an archive are missing or damaged, every job that reads it says which.")
def test_a_changed_file_is_not_compacted(client, options):
    """The checksums of its pages do not go into the new file, which would hide the damage forever."""
    archive_in_parts(client, options, JournalSample(14).story(50), 50)
    before = files_of(options.path)
    file = before[1]
    content = file.read_bytes()
    for place in column_pages(file, "id"):
        change(file, place)
    with pytest.raises(ArchiveError, match=rf"is damaged: queue=orders/date=[\d-]+/{file.name} "):
        compact(CompactOptions(path=options.path, queue="orders", grace_seconds=0))
    assert files_of(options.path) == before
    file.write_bytes(content)
    assert compact(CompactOptions(path=options.path, queue="orders")).files_after == 1


def column_pages(file: Path, name: str) -> list[int]:
    """A place in the middle of a column's pages."""
    group = pq.ParquetFile(file).metadata.row_group(0)
    column = next(one for at in range(group.num_columns) if (one := group.column(at)).path_in_schema == name)
    start = column.dictionary_page_offset or column.data_page_offset
    return [start + column.total_compressed_size // 2]


def test_a_file_that_its_storage_does_not_give_is_not_called_damaged(client, options):
    write_journal(client, options, JournalSample(14).story(12))
    archive_plainly(options)
    file = files_of(options.path)[0]
    file.unlink()
    file.symlink_to(file)  # which nobody can open, whatever their rights
    with pytest.raises(ArchiveError, match=rf"the storage at .* failed to read .*{file.name} \(\d+ rows\): "):
        archived(options.path)


# Bad input


def test_there_is_nothing_to_compact_where_nothing_was_archived(tmp_path):
    with pytest.raises(
        ArchiveError, match=r"no archive of the queue 'orders' at .*; archived there: none. Run archive"
    ):
        compact(CompactOptions(path=str(tmp_path), queue="orders"))


@pytest.mark.parametrize(
    "given",
    [{"path": ""}, {"partition_rows": 0}, {"segment_rows": True}, {"storage_options": {"a": 1}}, {"inventory": "yes"}],
)
def test_options_that_cannot_work_are_refused(given):
    with pytest.raises(ConfigurationError):
        ArchiveOptions(**{"url": "redis://localhost", "queue": "orders", "path": "archive"} | given)


@pytest.mark.parametrize(
    ("path", "advice"),
    [("dbfs:/lake", "file:///Volumes"), ("s3:lake", r"Write a URL as s3://"), ("", "path must not be empty")],
)
def test_a_path_that_would_end_up_elsewhere_is_refused(path, advice):
    with pytest.raises(ConfigurationError, match=advice):
        location_of(path)


def test_a_url_of_a_file_is_a_directory(tmp_path):
    assert location_of(f"file://{tmp_path}/a%20b").uri == f"{tmp_path}/a b"


def test_an_unknown_scheme_is_one_clear_error(client, options):
    write_journal(client, options, JournalSample(1).story(5))
    there = ArchiveOptions(url=options.url, queue="orders", path="nowhere://lake")
    with pytest.raises(ArchiveError, match=r"the storage at nowhere://lake/journal failed: .*nowhere"):
        archive_plainly(there)


def test_secrets_of_the_storage_are_not_shown():
    options = ArchiveOptions(
        url="redis://localhost", queue="orders", path="s3://lake", storage_options={"key": "hidden"}
    )
    assert "hidden" not in repr(options) + repr(location_of("s3://lake", {"key": "hidden"}))


# Other readers


ODD_NAMES = ["o'neil/ü %41", 'two\nlines "quoted"', "..", "a=b&c+d", "a%2Fb"]


@pytest.mark.promise("An archive consists of Delta tables, which other programs read.")
@pytest.mark.parametrize("odd", ODD_NAMES)
def test_polars_duckdb_and_spark_read_the_same_rows(spark, server, client, options, odd):
    """Polars takes the values of partitions from paths, so every path has all of them."""
    both = [options, ArchiveOptions(url=server.url, queue=odd, path=options.path, partition_rows=20)]
    stories = [JournalSample(16).story(40), JournalSample(17).story(30)]

    def archive_parts(parts: slice) -> None:
        for one, story in zip(both, stories, strict=True):
            write_journal(client, one, Events(story.events[parts]))
            archive_plainly(one)

    def everyone_reads_the_same() -> None:
        expected = sorted(
            (row["queue"], row["serial"], row["event"], row["id"], str(row["date"]))
            for one in both
            for row in archived(one.path, one.queue)
        )
        assert {row[0] for row in expected} == {one.queue for one in both}
        columns = "queue", "serial", "event", "id", "date"
        table = f"{options.path}/journal"
        by_polars = polars.read_delta(table).select(*columns).rows()
        journal = DeltaTable(table).to_pyarrow_dataset()
        by_duckdb = duckdb.sql(f"select {', '.join(columns)} from journal").fetchall()
        by_spark = [row for one in both for row in read_archive(spark, one.path, one.queue).select(*columns).collect()]
        assert journal is not None  # duckdb finds it by its name
        for found in (by_polars, by_duckdb, by_spark):
            assert sorted((*row[:4], str(row[4])) for row in found) == expected

    archive_parts(slice(0, 50))
    everyone_reads_the_same()
    for one in both:
        compact(CompactOptions(path=one.path, queue=one.queue, grace_seconds=0))
    everyone_reads_the_same()
    archive_parts(slice(50, None))
    everyone_reads_the_same()
    result = compact(CompactOptions(path=options.path, queue=odd, grace_seconds=0))
    assert result.files_after == 1
    everyone_reads_the_same()


def test_a_name_that_is_too_long_for_a_directory_is_archived_all_the_same(server, client, options):
    long = ArchiveOptions(url=server.url, queue="ü" * 200, path=options.path)
    for one in (options, long):
        written = write_journal(client, one, JournalSample(18).story(10))
        archive_plainly(one)
    assert [row["serial"] for row in archived(long.path, long.queue)] == [event["n"] for event in written]
    assert set(polars.read_delta(f"{options.path}/journal")["queue"]) == {"orders", None}


# With Spark


@pytest.mark.parametrize("little", [LITTLE, -1], ids=["in the driver", "in tasks"])
def test_spark_archives_and_reads_it(spark, client, options, monkeypatch, little):
    """The driver does little itself."""
    monkeypatch.setattr(archive_job, "LITTLE", little)
    written = write_journal(client, options, JournalSample(14, minutes=5).story(150), lost=(range(40, 44),))
    split = ArchiveOptions(url=options.url, queue="orders", path=options.path, segment_rows=200, partition_rows=60)
    heard, before = [], jobs_so_far(spark)
    result = archive(spark, split, heard.append)
    assert (jobs_so_far(spark) > before) == (little < 0)
    assert (result.rows, result.missing) == (len(written), [(40, 4)])
    assert {one.step for one in heard} == {"planned", "written", "committed", "marked"}
    json.dumps(result.as_dict())
    rows = read_archive(spark, options.path, "orders")
    found = rows.orderBy("serial").select("serial", "event", "id", "tenant", "queue", "date").collect()
    assert [(row.serial, row.event, row.id or "", row.tenant or "") for row in found] == [
        (event["n"], event["event"], event.get("id", ""), event.get("tenant", "")) for event in written
    ]
    assert {(row.queue, row.date) for row in found} == {("orders", date(2026, 9, 21))}
    times = rows.orderBy("serial").selectExpr("unix_micros(at) as at").collect()
    assert [row["at"] for row in times] == [event.get("at") for event in written]  # a gap has no time


@pytest.mark.parametrize("little", [LITTLE, -1], ids=["in the driver", "in tasks"])
def test_an_entry_of_another_program_is_named(spark, client, options, monkeypatch, little):
    monkeypatch.setattr(archive_job, "LITTLE", little)
    whole = ArchiveOptions(url=options.url, queue="orders", path=options.path)
    write_journal(client, whole, JournalSample(1).story(10))
    with JournalReader(whole) as journal:
        last = StreamId.parse(client.xrevrange(journal.key, count=1)[0][0].decode())
        client.xadd(journal.key, {"n": 0, "event": "acked", "at": "noon"}, id=str(last.next()))
    write_journal(client, whole, JournalSample(2).story(10))
    with pytest.raises(JournalError, match=rf"^the entry {last.next()} .* a foreign value in 'at': .* with XDEL\.$"):
        archive(spark, whole)


@pytest.mark.promise(
    "An archive contains every journal entry once, whenever a run is killed, and only archived entries are trimmed."
)
@pytest.mark.in_full  # the test of a run that dies shows the same without a second JVM
def test_a_spark_driver_killed_while_it_writes_leaves_nothing_doubled_and_nothing_lost(
    spark, server, client, options, tmp_path
):
    """The files of dead tasks lie there, and no commit names them."""
    written = write_journal(client, options, JournalSample(15).story(200))
    program = """
        import os, sys, threading, time
        from pathlib import Path
        from redis_message_queue.spark import session
        from redis_message_queue.spark import journal as journal_module
from redis_message_queue.spark.jobs import archive as archive_job
from redis_message_queue.spark.jobs import archive_tables
        from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
        from redis_message_queue.spark.driver import QUICK_START

        archive_job.LITTLE = -1  # so that tasks do it

        url, path = sys.argv[1:]
        spark = session("mortal", "local[2]", **QUICK_START)

        def die_in_the_middle():
            while not any(Path(path, "journal").glob("date=*/*.parquet")):
                time.sleep(0.001)
            os.kill(os.getpid(), 9)

        threading.Thread(target=die_in_the_middle, daemon=True).start()
        archive(spark, ArchiveOptions(url=url, queue="orders", path=path, partition_rows=20))
        """
    place = tmp_path / "mortal.py"
    place.write_text(textwrap.dedent(program))
    root = Path(__file__).parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(root), os.environ.get("PYTHONPATH", ""))),
        "TMPDIR": str(tmp_path),  # a driver that is killed does not clean up behind it
    }
    ended = subprocess.run(
        [sys.executable, place, server.url, options.path], capture_output=True, text=True, timeout=1100, env=environment
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert files_of(options.path), "it had begun to write"
    assert serials(options.path) == []
    assert archive(spark, options).rows == len(written)
    found = read_archive(spark, options.path, "orders").selectExpr("count(*)", "count(distinct serial)").first()
    assert found is not None and tuple(found) == (len(written), len(written))
