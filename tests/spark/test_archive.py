"""Tasks of Spark write an archive, and Spark reads it; what a job does in its driver is tested without a session."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from datetime import date
from pathlib import Path

import pytest

from redis_message_queue.spark.jobs import archive as archive_job
from redis_message_queue.spark.jobs.archive import (
    ArchiveOptions,
    CompactOptions,
    archive,
    compact,
    read_archive,
)
from redis_message_queue.spark.jobs.replay import ReplayOptions, replay
from redis_message_queue.spark.jobs.report import ReportOptions, report
from redis_message_queue.values.errors import ArchiveError, JournalError
from tests.depth import often
from tests.pipeline.journal_samples import JournalSample, write_journal
from tests.pipeline.plain_archiver import archive_plainly, archived
from tests.pipeline.test_archive import (
    ODD_NAMES,
    change,
    column_pages,
    files_of,
    options,
    serials,
    write_a_foreign_entry,
)
from tests.spark.shared_session import jobs_so_far

pytestmark = pytest.mark.topic("Data pipeline")


__all__ = ["options"]  # a fixture


@pytest.mark.in_full
@pytest.mark.promise("If files of an archive are missing or damaged, every job that reads it says which.")
def test_a_replay_and_a_report_name_the_file_in_which_a_byte_was_changed(spark, server, client, options):
    write_journal(client, options, JournalSample(14, payloads=True).story(50))
    archive_plainly(options)
    file = max(files_of(options.path), key=lambda one: one.stat().st_size)
    for place in column_pages(file, "id"):
        change(file, place)
    said = rf"the archive at .* is damaged: queue=orders/date=[\d-]+/{file.name} .* Restore these files"
    with pytest.raises(ArchiveError, match=said):
        replay(spark, ReplayOptions(url=server.url, queue="orders", archive=options.path, where="delivery_count > 0"))
    with pytest.raises(ArchiveError, match=said):
        report(spark, ReportOptions(path=options.path, queue="orders", output=f"{options.path}-report"))


@pytest.mark.parametrize("odd", ODD_NAMES[: often(1, len(ODD_NAMES))])
def test_spark_reads_the_rows_of_a_queue_with_an_odd_name(spark, server, client, options, odd):
    named = ArchiveOptions(url=server.url, queue=odd, path=options.path, partition_rows=20)
    for one in (options, named):
        write_journal(client, one, JournalSample(16).story(15))
        archive_plainly(one)

    def reads_the_same() -> None:
        expected = [(odd, row["serial"], row["event"], row["date"]) for row in archived(options.path, odd)]
        found = read_archive(spark, options.path, odd).select("queue", "serial", "event", "date").collect()
        assert sorted(map(tuple, found)) == expected

    reads_the_same()
    compact(CompactOptions(path=options.path, queue=odd, grace_seconds=0))
    reads_the_same()


def test_tasks_archive_a_journal_and_spark_reads_it(spark, client, options, monkeypatch):
    """The driver does little itself."""
    monkeypatch.setattr(archive_job, "DRIVER_ROW_LIMIT", -1)
    written = write_journal(client, options, JournalSample(14, minutes=5).story(150), lost=(range(40, 44),))
    split = ArchiveOptions(url=options.url, queue="orders", path=options.path, segment_rows=200, partition_rows=60)
    heard, before = [], jobs_so_far(spark)
    result = archive(spark, split, heard.append)
    assert jobs_so_far(spark) > before
    assert (result.rows, result.missing) == (len(written), [(40, 4)])
    assert {one.step for one in heard} == {"planned", "written", "committed", "marked"}
    json.dumps(result.as_dict())
    rows = read_archive(spark, options.path, "orders")
    wanted = ("serial", "event", "id", "tenant", "queue", "date", "unix_micros(at) as at")
    found = rows.orderBy("serial").selectExpr(*wanted).collect()
    assert [(row.serial, row.event, row.id or "", row.tenant or "") for row in found] == [
        (event["n"], event["event"], event.get("id", ""), event.get("tenant", "")) for event in written
    ]
    assert {(row.queue, row.date) for row in found} == {("orders", date(2026, 9, 21))}
    assert [row["at"] for row in found] == [event.get("at") for event in written]  # a gap has no time


def test_tasks_name_an_entry_of_another_program(spark, client, options, monkeypatch):
    monkeypatch.setattr(archive_job, "DRIVER_ROW_LIMIT", -1)
    foreign = write_a_foreign_entry(client, options)
    with pytest.raises(JournalError, match=rf"^the entry {foreign} .* a foreign value in 'at': .* with XDEL\.$"):
        archive(spark, options)


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
        from redis_message_queue.spark.jobs import archive as archive_job
        from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
        from redis_message_queue.spark.driver import QUICK_START

        archive_job.DRIVER_ROW_LIMIT = -1  # so that tasks do it

        url, path = sys.argv[1:]
        spark = session("mortal", "local[2]", **QUICK_START)

        def die_in_the_middle():
            while not any(Path(path, "journal").glob("**/*.parquet")):
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
