"""Tasks count for a report what its driver would count; what a driver counts itself is tested without a session."""

import sys

import pytest

from redis_message_queue.spark.jobs import days
from redis_message_queue.spark.jobs.archive import ArchiveOptions, journal_table
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.report import statistics_of
from tests.docs.pages import DOCS, blocks_of, keeps
from tests.pipeline import expected_statistics
from tests.pipeline.plain_archiver import archive_plainly
from tests.pipeline.test_kept_days import as_json, kept, saved
from tests.spark.shared_session import jobs_so_far

pytestmark = pytest.mark.topic("Data pipeline")

__all__ = ["kept", "saved"]  # fixtures


def test_tasks_count_what_the_driver_counts(spark, kept, monkeypatch):
    """Several tasks have a part of a day each, and what they leave is counted in a second step."""
    alone = kept.at_once()
    options = ArchiveOptions(url=kept.options.url, queue="orders", path=f"{kept.options.path}-parts", partition_rows=30)
    archive_plainly(options)
    assert max(one.rows for one in journal_table(location_of(options.path)).files("orders")) < 60
    monkeypatch.setattr(days, "LOCAL_ROWS", 0)
    monkeypatch.setattr(days, "_LEAST_ROWS_A_TASK", 30)
    monkeypatch.setattr(days, "ROWS_A_TASK", 60)
    monkeypatch.setattr(days, "_ROWS_A_JOB", 300)
    before = jobs_so_far(spark)
    found = statistics_of(spark, options.path, "orders")
    assert jobs_so_far(spark) > before
    expected_statistics.agrees(found, kept.events)
    assert as_json(found) == alone


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
