"""Tasks of Spark write an archive on an object store, and Spark reads it."""

import pytest

from redis_message_queue.spark.jobs import archive as archive_job
from redis_message_queue.spark.jobs.archive import CompactOptions, archive, compact, read_archive
from redis_message_queue.spark.jobs.lake import read_messages
from redis_message_queue.spark.jobs.report import ReportOptions, report
from tests.pipeline.journal_samples import JournalSample, fill_queue, write_journal
from tests.pipeline.test_object_store import options, storage

pytestmark = [pytest.mark.topic("Data pipeline"), pytest.mark.in_full]

__all__ = ["options", "storage"]  # fixtures


@pytest.mark.promise("An archive may be on an object store, with one set of storage options.")
def test_tasks_write_an_archive_on_s3_and_spark_reads_and_reports_on_it(spark, client, options, storage, monkeypatch):
    monkeypatch.setattr(archive_job, "DRIVER_ROW_LIMIT", -1)
    story = JournalSample(41).story(100)
    events = write_journal(client, options, story)
    fill_queue(client, options, story)
    archive(spark, options)
    found = read_archive(spark, options.path, "orders", storage).select("serial").orderBy("serial").collect()
    assert [row.serial for row in found] == [event["n"] for event in events]
    output = f"{options.path}-report"
    made = report(spark, ReportOptions(path=options.path, queue="orders", output=output, storage_options=storage))
    assert (made.verdict, made.page) == ("balanced", f"{output}/report.html")
    compact(CompactOptions(path=options.path, queue="orders", storage_options=storage))
    assert read_messages(spark, options.path, "orders", storage).count() > 50
