"""An archive has every entry of the journal once, whatever moment a run dies at, and says which it never saw."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from redis_message_queue.spark import journal as journal_module
from redis_message_queue.spark.jobs import archive_tables
from redis_message_queue.spark.jobs.archive import (
    ArchiveOptions,
    CompactOptions,
    archive,
    compact,
    journal_table,
    read_archive,
)
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.job import JobProgress
from redis_message_queue.spark.jobs.lake import Lake
from redis_message_queue.spark.journal import JournalReader, StreamId
from redis_message_queue.values.errors import ArchiveConflictError, ArchiveError, ConfigurationError, JournalError
from tests.depth import often
from tests.pipeline.journal_samples import MINUTE, START, Events, JournalSample, write_journal
from tests.pipeline.plain_archiver import NO_SESSION, archive_at_once, archive_plainly, archived, run_mortal

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"), partition_rows=50)


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
    story = JournalSample(1).story(60)
    first, second = Events(story.events[:100]), Events(story.events[100:])
    written = write_journal(client, options, first)
    assert archive_plainly(options).rows == 100
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
    write_journal(client, options, JournalSample(3).story(40), lost=lost, announced=announced)
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
        *("0", "written"),
        *(pytest.param(one, marks=pytest.mark.in_full) for one in ("planned", "1", "committed", "marked")),
    ],
)
def test_a_run_that_dies_leaves_nothing_doubled_and_nothing_lost(server, client, options, where):
    """Killed between each two steps, and between the files of a commit."""
    story = JournalSample(6).story(50)
    write_journal(client, options, Events(story.events[:60]))
    archive_plainly(options)
    write_journal(client, options, Events(story.events[60:]))
    for _ in range(often(1, 2)):
        run_mortal(server, where, options.path, 40)
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
    columns = pa.schema([table.schema.field(name) for name in ("serial", "payload")])
    batches = list(archive_tables._reader(table.location, columns)(table.files("orders")))
    assert max(batch.num_rows for batch in batches) <= 30
    assert [one for batch in batches for one in batch.column("serial").to_pylist()] == list(range(1, 301))


# Compaction


def test_small_files_become_large_ones_with_the_same_rows(client, options):
    story = JournalSample(8).story(40)
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
    archive_in_parts(client, options, JournalSample(9).story(25), 30)
    whole = archived(options.path)
    write_journal(client, options, JournalSample(9, start=START + 60 * MINUTE).story(5))
    run_mortal(server, "written", options.path, 1_000)
    result = compact(CompactOptions(path=options.path, queue="orders", grace_seconds=0))
    assert result.files_removed >= result.files_before
    assert len(files_of(options.path)) == result.files_after == 1
    assert archived(options.path) == whole


def test_a_file_is_counted_as_removed_once(client, options):
    archive_in_parts(client, options, JournalSample(9).story(25), 30)
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


@pytest.mark.parametrize("name", ["o'neil/ü %41", ".."])
def test_an_odd_name_of_a_queue_is_only_a_name(server, client, tmp_path, name):
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

    with pytest.raises(
        ArchiveConflictError, match=r"another run has changed the journal of 'orders' .*; run this one again"
    ):
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
    with pytest.raises(ArchiveConflictError, match="another run has changed the journal of 'orders'"):
        archive_plainly(options)
    found = serials(options.path)
    assert found == list(range(1, len(found) + 1))


@pytest.mark.promise("Archives of different queues run at once into one path, and none of them fails.")
def test_archives_of_different_queues_never_conflict(server, client, options):
    """Each process archives its own queue, run after run, into the tables that they share."""
    queues = [f"orders {number}" for number in range(4)]
    runs = often(2, 25)
    assert archive_at_once(server, options.path, queues, runs) == [0] * len(queues)
    for queue in queues:
        assert [row["serial"] for row in archived(options.path, queue)] == list(range(1, runs + 1))
        lake = Lake(location_of(options.path), queue)
        assert [sum(one.rows for one in table.files(queue)) for table in (lake.messages, lake.open_messages)] == [
            runs,
            1,
        ]


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
def test_a_file_that_is_missing_or_damaged_is_named(client, options, damage: Callable[[Path], str]):
    write_journal(client, options, JournalSample(14).story(50))
    archive_plainly(options)
    complaint = damage(files_of(options.path)[0])
    with pytest.raises(ArchiveError, match=rf"the archive at .* is damaged: .*{complaint}.* Restore these files"):
        read_archive(NO_SESSION, options.path, "orders")


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
    for place in range(4, footer, often(89, 23)):
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
    for place in range(footer, len(content), often(97, 11)):
        change(file, place)
        try:
            archived(options.path)
        except ArchiveError as error:
            assert file.name in str(error)
            named += 1
        file.write_bytes(content)
    assert named


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


@pytest.mark.in_full
@pytest.mark.promise("An archive consists of Delta tables, which other programs read.")
def test_polars_and_duckdb_read_the_same_rows(server, client, options, tmp_path, subtests):
    """Polars takes the values of partitions from paths, so every path has all of them."""
    for place, odd in enumerate(ODD_NAMES[: often(1, 5)]):
        with subtests.test(name=odd):
            read_by_others(server, client, odd, str(tmp_path / str(place)))


def read_by_others(server, client, odd: str, path: str) -> None:
    import duckdb  # here, so that not every process of a test run imports them
    import polars

    client.flushall()
    both = [ArchiveOptions(url=server.url, queue=one, path=path, partition_rows=20) for one in ("orders", odd)]
    stories = [JournalSample(16).story(40), JournalSample(17).story(30)]

    def archive_parts(parts: slice) -> None:
        for one, story in zip(both, stories, strict=True):
            write_journal(client, one, Events(story.events[parts]))
            archive_plainly(one)

    def everyone_reads_the_same() -> None:
        expected = sorted(
            (row["queue"], row["serial"], row["event"], row["id"], str(row["date"]))
            for one in both
            for row in archived(path, one.queue)
        )
        assert {row[0] for row in expected} == {one.queue for one in both}
        columns = "queue", "serial", "event", "id", "date"
        by_polars = polars.read_delta(f"{path}/journal").select(*columns).rows()
        journal = DeltaTable(f"{path}/journal").to_pyarrow_dataset()
        by_duckdb = duckdb.sql(f"select {', '.join(columns)} from journal").fetchall()
        assert journal is not None  # duckdb finds it by its name
        for found in (by_polars, by_duckdb):
            assert sorted((*row[:4], str(row[4])) for row in found) == expected

    archive_parts(slice(0, 50))
    everyone_reads_the_same()
    for one in both:
        compact(CompactOptions(path=path, queue=one.queue, grace_seconds=0))
    everyone_reads_the_same()
    archive_parts(slice(50, None))
    everyone_reads_the_same()
    result = compact(CompactOptions(path=path, queue=odd, grace_seconds=0))
    assert result.files_after == 1
    everyone_reads_the_same()


def test_a_name_that_is_too_long_for_a_directory_is_archived_all_the_same(server, client, options):
    import polars

    long = ArchiveOptions(url=server.url, queue="ü" * 200, path=options.path)
    for one in (options, long):
        written = write_journal(client, one, JournalSample(18).story(10))
        archive_plainly(one)
    assert [row["serial"] for row in archived(long.path, long.queue)] == [event["n"] for event in written]
    assert set(polars.read_delta(f"{options.path}/journal")["queue"]) == {"orders", None}


# The job itself: the driver does little without a task


def test_a_little_journal_is_archived_without_a_task(client, options):
    written = write_journal(client, options, JournalSample(14, minutes=5).story(50), lost=(range(40, 44),))
    heard: list[JobProgress] = []
    result = archive(NO_SESSION, options, heard.append)
    assert (result.rows, result.missing) == (len(written), [(40, 4)])
    assert {one.step for one in heard} == {"planned", "written", "committed", "marked"}
    assert serials(options.path) == [event["n"] for event in written]
    json.dumps(result.as_dict())


def test_an_entry_of_another_program_is_named(client, options):
    foreign = write_a_foreign_entry(client, options)
    with pytest.raises(JournalError, match=rf"^the entry {foreign} .* a foreign value in 'at': .* with XDEL\.$"):
        archive(NO_SESSION, options)


def write_a_foreign_entry(client, options: ArchiveOptions) -> StreamId:
    """Among entries of the queue; its place in the journal."""
    write_journal(client, options, JournalSample(1).story(10))
    with JournalReader(options) as journal:
        foreign = StreamId.parse(client.xrevrange(journal.key, count=1)[0][0].decode()).next()
        client.xadd(journal.key, {"n": 0, "event": "acked", "at": "noon"}, id=str(foreign))
    write_journal(client, options, JournalSample(2).story(10))
    return foreign
