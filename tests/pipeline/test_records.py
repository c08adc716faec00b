"""The records of settled messages are archived beside the journal: each once, whatever a run dies of."""

from typing import Any, cast

import pytest
import redis

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.spark.jobs.archive import ArchiveOptions, CompactOptions, archive, compact
from redis_message_queue.spark.jobs.archive_tables import ArchiveTable, location_of
from redis_message_queue.spark.jobs.records import records_table
from redis_message_queue.values.errors import ArchiveConflictError
from tests.pipeline.plain_archiver import NO_SESSION

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
                    try:
                        raise TimeoutError(f"timeout of {payload.decode()}")
                    except TimeoutError as error:
                        batch.fail(batch[0], error)
        except LookupError:
            with queue.process_messages(1, wait_seconds=0) as batch:
                assert not batch


def archived(options: ArchiveOptions) -> list[dict[str, Any]]:
    table = records_table(location_of(options.path))
    return table.read_locally(options.queue, table.schema.names, lambda _: True).to_pylist()


@pytest.mark.promise(
    "The archive keeps the record of a settled message once, however a run dies, and a replay finds it by its error."
)
def test_each_record_is_archived_once_with_what_is_known_of_its_message(queue, options):
    """Two runs, a compaction, and a list that was cut in between."""
    settle(queue, "c1", "f1", "d1")
    assert archive(NO_SESSION, options).records == 3
    settle(queue, "c2", "f2")
    queue.purge("completed")
    assert archive(NO_SESSION, options).records == 1
    assert archive(NO_SESSION, options).records == 0

    found = archived(options)
    assert sorted(row["list"] for row in found) == ["completed", "dead_letters", "failed", "failed"]
    assert {row["error"] for row in found if row["list"] == "failed"} == {"timeout of f1", "timeout of f2"}
    assert {row["tenant"] for row in found} == {"acme"}
    kept = {record.id: record for record in (*queue.records("failed"), *queue.records("dead_letters"))}
    for row in found:
        if record := kept.get(row["id"]):
            assert (row["reason"], row["error_type"], row["traceback"], row["delivery_count"]) == (
                record.reason,
                record.error_type,
                record.traceback,
                record.delivery_count,
            )

    compact(CompactOptions(path=options.path, queue="orders"))
    assert sorted(row["id"] for row in archived(options)) == sorted(row["id"] for row in found)
    assert [one.rows for one in records_table(location_of(options.path)).files("orders")] == [4]


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
def test_a_run_that_dies_before_its_commit_has_archived_nothing(queue, options, before_commit):
    def die() -> None:
        raise Died

    settle(queue, "c1", "f1")
    before_commit(die)
    with pytest.raises(Died):
        archive(NO_SESSION, options)
    assert archived(options) == []
    assert archive(NO_SESSION, options).records == 2
    assert len(archived(options)) == 2


@pytest.mark.promise(
    "The archive keeps the record of a settled message once, however a run dies, and a replay finds it by its error."
)
def test_two_runs_at_once_do_not_archive_the_same_record_twice(queue, options, before_commit):
    """The one that comes second finds that the archive has changed, and changes nothing."""
    settle(queue, "c1")
    before_commit(lambda: archive(NO_SESSION, options))
    with pytest.raises(ArchiveConflictError, match="run this one again"):
        archive(NO_SESSION, options)
    assert len(archived(options)) == 1


def test_what_is_no_record_of_ours_is_left_out(queue, options, client):
    settle(queue, "c1")
    client.lpush("orders::records::completed", "somebody else's", '{"id": null}', '{"id": "x", "finished": "noon"}')
    assert archive(NO_SESSION, options).records == 1
