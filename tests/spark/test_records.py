"""The records of settled messages are archived beside the journal: each once, whatever a run dies of."""

from typing import Any, cast

import pytest
import redis
from pyspark.sql import SparkSession

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.errors import ArchiveConflictError
from redis_message_queue.spark import tables
from redis_message_queue.spark.jobs import records
from redis_message_queue.spark.jobs.archive import ArchiveOptions, CompactOptions, archive, compact
from redis_message_queue.spark.jobs.archive_tables import LITTLE, ArchiveTable, location_of
from redis_message_queue.spark.jobs.records import read_records, records_table
from redis_message_queue.spark.jobs.replay import ReplayOptions, replay
from tests.spark.shared_session import jobs_so_far

pytestmark = pytest.mark.topic("Data pipeline")


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
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"))


def settle(queue: RedisMessageQueue, *orders: str) -> None:
    """Each is completed, fails or becomes a dead letter, by its first letter."""
    queue.publish_many(orders, tenant="acme")
    for _ in orders:
        try:
            with queue.process_messages(1, wait_seconds=0) as batch:
                payload = cast(bytes, batch[0].payload)
                if payload.startswith(b"d"):
                    raise LookupError("requeued, and then delivered too often")
                if payload.startswith(b"f"):
                    batch.fail(batch[0], TimeoutError(f"timeout of {payload.decode()}"))
        except LookupError:
            with queue.process_messages(1, wait_seconds=0) as batch:
                assert not batch


def archived(spark: SparkSession, options: ArchiveOptions) -> list[dict[str, Any]]:
    return [row.asDict() for row in read_records(spark, options.path, options.queue).collect()]


@pytest.mark.promise(
    "The archive keeps the record of a settled message once, however a run dies, and a replay finds it by its error."
)
@pytest.mark.parametrize("little", [LITTLE, -1], ids=["in the driver", "in tasks"])
def test_each_record_is_archived_once_and_found_by_its_error(spark, queue, options, monkeypatch, little):
    """Two runs, a compaction, a list that was cut in between, and a replay by the text of an error."""
    monkeypatch.setattr(records, "LITTLE", little)
    settle(queue, "c1", "f1", "d1")
    before = jobs_so_far(spark)
    assert archive(spark, options).records == 3
    assert (jobs_so_far(spark) > before) == (little < 0)
    settle(queue, "c2", "f2")
    queue.purge("completed")
    assert archive(spark, options).records == 1
    assert archive(spark, options).records == 0

    found = archived(spark, options)
    assert sorted(row["list"] for row in found) == ["completed", "dead_letters", "failed", "failed"]
    assert {row["error"] for row in found if row["list"] == "failed"} == {"timeout of f1", "timeout of f2"}
    assert {row["tenant"] for row in found} == {"acme"}
    kept = {record.id: record for record in (*queue.records("failed"), *queue.records("dead_letters"))}
    for row in found:
        if record := kept.get(row["id"]):
            assert (row["reason"], row["error_type"], row["delivery_count"]) == (
                record.reason,
                record.error_type,
                record.delivery_count,
            )

    compact(CompactOptions(path=options.path, queue="orders"))
    assert sorted(row["id"] for row in archived(spark, options)) == sorted(row["id"] for row in found)
    assert [one.rows for one in records_table(location_of(options.path)).files("orders")] == [4]

    chosen = ReplayOptions(url=options.url, queue="orders", archive=options.path, where="'timeout of f2' in error")
    assert replay(spark, chosen).published == 1
    assert [record.payload for record in queue.peek()] == [b"f2"]


class Died(Exception):
    pass


@pytest.fixture
def before_commit(monkeypatch):
    """Do something before the records are committed, once."""
    commit = ArchiveTable.commit

    def install(act) -> None:
        def interrupted(self, *args, **kwargs):
            if self.name == "records":
                monkeypatch.setattr(ArchiveTable, "commit", commit)
                act()
            return commit(self, *args, **kwargs)

        monkeypatch.setattr(ArchiveTable, "commit", interrupted)

    return install


@pytest.mark.promise(
    "The archive keeps the record of a settled message once, however a run dies, and a replay finds it by its error."
)
def test_a_run_that_dies_before_its_commit_has_archived_nothing(spark, queue, options, before_commit):
    def die() -> None:
        raise Died

    settle(queue, "c1", "f1")
    before_commit(die)
    with pytest.raises(Died):
        archive(spark, options)
    assert archived(spark, options) == []
    assert archive(spark, options).records == 2
    assert len(archived(spark, options)) == 2


@pytest.mark.promise(
    "The archive keeps the record of a settled message once, however a run dies, and a replay finds it by its error."
)
def test_two_runs_at_once_do_not_archive_the_same_record_twice(spark, queue, options, before_commit):
    """The one that comes second finds that the archive has changed, and changes nothing."""
    settle(queue, "c1")
    before_commit(lambda: archive(spark, options))
    with pytest.raises(ArchiveConflictError, match="Run it again"):
        archive(spark, options)
    assert len(archived(spark, options)) == 1


def test_what_is_no_record_of_ours_is_left_out(spark, queue, options, client):
    settle(queue, "c1")
    client.lpush("orders::records::completed", "somebody else's", '{"id": null}', '{"id": "x", "finished": "noon"}')
    assert archive(spark, options).records == 1


def test_long_lists_are_read_by_several_tasks(spark, queue, options, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_A_TASK", 7)
    monkeypatch.setattr(records, "LITTLE", -1)
    settle(queue, *(f"c{number}" for number in range(20)))
    assert archive(spark, options).records == 20
    assert len({row["id"] for row in archived(spark, options)}) == 20
