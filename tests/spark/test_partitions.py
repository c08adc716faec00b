"""The jobs that need Spark reach all partitions of a queue, and each message once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
from redis_message_queue.spark.jobs.backfill import BackfillOptions, backfill
from redis_message_queue.spark.jobs.replay import ReplayOptions, replay
from redis_message_queue.spark.jobs.report import ReportOptions, report
from tests.pipeline.test_partitions import COUNT, options, queue

pytestmark = pytest.mark.topic("Data pipeline")

__all__ = ["options", "queue"]  # fixtures


@pytest.mark.promise("A replay reaches the dead letters of all partitions, each once.")
def test_dead_letters_of_all_partitions_are_replayed_once(spark, client, clean_server, tmp_path):
    queue = RedisMessageQueue("orders", client=client, partitions=COUNT, max_delivery_count=1, journal="payload")
    for number in range(COUNT):
        queue.partition(number).publish_many([f"{number}.{place}" for place in range(4)])
    queue.run(lambda message: 1 / 0, until_empty=True)
    assert queue.stats().dead_letters == COUNT * 4
    given = ReplayOptions(url=clean_server.url, queue="orders")
    assert (replay(spark, given).published, replay(spark, given).suppressed) == (12, 12)
    assert queue.stats().pending == 12
    RedisMessageQueue("elsewhere", client=client, partitions=2).publish("a")
    options = ArchiveOptions(url=clean_server.url, queue="orders", path=str(tmp_path))
    archive(spark, options)
    given = ReplayOptions(
        url=clean_server.url, queue="orders", into="elsewhere", archive=str(tmp_path), where="state == 'dead'"
    )
    assert replay(spark, given).published == 12
    assert RedisMessageQueue("elsewhere", client=client, partitions=2).stats().pending == 13


@pytest.mark.promise("A backfill spreads its rows over the partitions, and publishes each once.")
def test_a_backfill_reaches_all_partitions(spark, queue, clean_server, tmp_path):
    queue.partition(0).publish("so that Redis knows the number")
    for file in range(6):
        lines = [json.dumps({"file": file, "place": place, "id": f"{file}.{place}"}) for place in range(10)]
        (tmp_path / f"{file}.json").write_text("\n".join(lines))
    given = {"url": clean_server.url, "queue": "orders", "source": str(tmp_path), "format": "json"}
    by_place = BackfillOptions(**given)
    assert (backfill(spark, by_place).published, backfill(spark, by_place).published) == (60, 0)
    by_key = BackfillOptions(**given, dedup_key_column="id", name="again")
    assert backfill(spark, by_key).published == 60
    again = BackfillOptions(**given, dedup_key_column="id", name="again", restart=True)
    assert backfill(spark, again).suppressed == 60
    assert queue.stats().pending == 121
    assert all(queue.partition(number).stats().pending > 10 for number in range(COUNT))


@pytest.mark.promise("The report accounts for every message of all partitions.")
@pytest.mark.in_full  # each partition is archived, refreshed and reported on as a queue is
def test_the_report_accounts_for_the_messages_of_all_partitions(spark, queue, options, client, tmp_path):
    def reported() -> Any:
        return report(spark, ReportOptions(path=options.path, queue="orders", output=str(tmp_path / "report")))

    for number in range(COUNT):
        part = queue.partition(number)
        part.publish_many([f"{number}.{place}" for place in range(8)])
        with part.process_message():
            pass
        with pytest.raises(ZeroDivisionError), part.process_message():
            1 / 0  # noqa: B018  # it must fail
    result = archive(spark, options)
    assert (result.rows, result.records) == (COUNT * 12, COUNT * 2)
    found = reported()
    assert (found.verdict, found.entries) == ("balanced", COUNT * 12)
    accounts = {one["account"]: one["messages"] for one in found.statistics["tables"]["conservation"]}
    assert (accounts["entered"], accounts["acked"], accounts["failed"], accounts["remaining"]) == (24, 3, 3, 18)
    # One message of a partition disappears, behind the back of the queue.
    client.rpop(queue.partition(2).key.pending)
    queue.partition(0).publish("so that there is something to archive")
    archive(spark, options)
    found = reported()
    assert (found.verdict, found.because.partition(":")[0]) == (
        "unbalanced",
        "1 messages that should be in the queue are not there",
    )
