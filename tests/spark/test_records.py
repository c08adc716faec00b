"""The records of settled messages are archived beside the journal: each once, whatever a run dies of."""

from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.errors import ArchiveConflictError
from redis_message_queue.spark.jobs import records
from redis_message_queue.spark.jobs.archive import ArchiveOptions, CompactOptions, archive, compact
from redis_message_queue.spark.jobs.files import files_at
from redis_message_queue.spark.jobs.ledger import Ledger
from redis_message_queue.spark.jobs.records import read_records
from redis_message_queue.spark.jobs.replay import ReplayOptions, replay


@pytest.fixture
def queue(client: redis.Redis) -> RedisMessageQueue:
    return RedisMessageQueue(
        "orders",
        client=client,
        journal="payload",
        enable_completed_queue=True,
        enable_failed_queue=True,
        max_delivery_count=1,
        visibility_timeout_seconds=300,
    )


@pytest.fixture
def options(server: EmbeddedRedis, tmp_path) -> ArchiveOptions:
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"), grace_seconds=0)


def settle(queue: RedisMessageQueue, *orders: str) -> None:
    """Each is completed, fails or becomes a dead letter, by its first letter."""
    queue.publish_many(orders, tenant="acme")
    for _ in orders:
        try:
            with queue.process_messages(1, wait_seconds=0) as batch:
                if batch[0].payload.startswith(b"d"):
                    raise LookupError("given back, and then delivered too often")
                if batch[0].payload.startswith(b"f"):
                    batch.fail(batch[0], TimeoutError(f"timeout of {batch[0].payload.decode()}"))
        except LookupError:
            with queue.process_messages(1, wait_seconds=0) as batch:
                assert not batch


def archived(spark: SparkSession, options: ArchiveOptions) -> list[dict[str, Any]]:
    return [row.asDict() for row in read_records(spark, options.path, options.queue).collect()]


def test_each_record_is_archived_once_and_found_by_its_error(spark, queue, options):
    """Two runs, a compaction, a list that was cut in between, and a replay by the text of an error."""
    settle(queue, "c1", "f1", "d1")
    assert archive(spark, options).records == 3
    settle(queue, "c2", "f2")
    queue.purge("completed")
    assert archive(spark, options).records == 1
    assert archive(spark, options).records == 0

    found = archived(spark, options)
    assert sorted(row["source"] for row in found) == ["completed", "dead_letters", "failed", "failed"]
    assert {row["error"] for row in found if row["source"] == "failed"} == {"timeout of f1", "timeout of f2"}
    assert {row["tenant"] for row in found} == {"acme"}
    kept = {record.id: record for record in (*queue.records("failed"), *queue.records("dead_letters"))}
    for row in found:
        if record := kept.get(row["id"]):
            assert (row["reason"], row["error_type"], row["delivery_count"]) == (
                record.reason,
                record.error_type,
                record.delivery_count,
            )

    result = compact(spark, CompactOptions(path=options.path, queue="orders", grace_seconds=0))
    assert result.record_directories == 2
    assert sorted(row["id"] for row in archived(spark, options)) == sorted(row["id"] for row in found)
    ledger = Ledger(files_at(options.path, spark), "orders")
    assert [one.rows for one in ledger.read().kept] == [4]
    assert len(ledger.files.list(f"{ledger.directory}/records/{_day(ledger)}")) == 1, "what was replaced is gone"

    chosen = ReplayOptions(
        url=options.url, queue="orders", source="archive", path=options.path, where="'timeout of f2' in error"
    )
    assert replay(spark, chosen).published == 1
    assert [record.payload for record in queue.peek()] == [b"f2"]


def _day(ledger: Ledger) -> str:
    return f"date={ledger.read().kept[0].date}"


def test_a_run_that_dies_before_its_manifest_has_archived_nothing(spark, queue, options, monkeypatch):
    settle(queue, "c1", "f1")

    class Died(Exception):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(records, "_added", die)
        with pytest.raises(Died):
            archive(spark, options)
    assert archived(spark, options) == []
    assert archive(spark, options).records == 2
    assert len(archived(spark, options)) == 2


def test_two_runs_at_once_do_not_archive_the_same_record_twice(spark, queue, options, monkeypatch):
    """The one that comes second finds that the archive has changed, and changes nothing."""
    settle(queue, "c1")
    added = records._added

    def overtaken(now, known, kept):
        monkeypatch.setattr(records, "_added", added)
        assert archive(spark, options).records == 1
        return added(Ledger(files_at(options.path, spark), "orders").read(), known, kept)

    monkeypatch.setattr(records, "_added", overtaken)
    with pytest.raises(ArchiveConflictError, match="Run it again"):
        archive(spark, options)
    assert len(archived(spark, options)) == 1


def test_what_is_no_record_of_ours_is_left_out(spark, queue, options, client):
    settle(queue, "c1")
    client.lpush("orders::records::completed", "somebody else's", '{"id": null}', '{"id": "x", "finished": "noon"}')
    assert archive(spark, options).records == 1


def test_long_lists_are_read_page_by_page_and_by_several_tasks(spark, queue, options, monkeypatch):
    monkeypatch.setattr(records, "_PAGE", 3)
    monkeypatch.setattr(records, "_TASK", 7)
    settle(queue, *(f"c{number}" for number in range(20)))
    assert archive(spark, options).records == 20
    assert len({row["id"] for row in archived(spark, options)}) == 20
