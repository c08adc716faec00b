"""Sink, tables and jobs reach all partitions of a queue, and each message once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql import types as t

from redis_message_queue import PartitionCountError, RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.spark.connection import Partition, RedisReader
from redis_message_queue.spark.consumer_group import ConsumerGroup
from redis_message_queue.spark.jobs.archive import ArchiveOptions, application_of, journal_table
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.backfill import BackfillOptions
from redis_message_queue.spark.jobs.splits import SplitPublisher, SplitRow, publish_splits
from redis_message_queue.spark.journal import JournalReader
from redis_message_queue.spark.options import PublishOptions, QueueAddress, SinkOptions, SourceOptions, TableOptions
from redis_message_queue.spark.sink import BulkPublisher, ContentKeys, RowReader, publish_rows
from redis_message_queue.spark.table_reader import TableReader
from redis_message_queue.spark.tables import table_schema
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.values.errors import JournalError, PayloadValueError, SelectionError
from tests.pipeline.plain_archiver import archive_plainly, archived, run_mortal

pytestmark = pytest.mark.topic("Data pipeline")

COUNT = 3


@pytest.fixture
def queue(client: redis.Redis) -> RedisMessageQueue:
    return RedisMessageQueue(
        "orders",
        client=client,
        partitions=COUNT,
        journal="payload",
        enable_completed_queue=True,
        enable_failed_queue=True,
    )


def placed(queue: RedisMessageQueue) -> dict[str, int]:
    """The partition of each waiting message."""
    found: dict[str, int] = {}
    for number in range(COUNT):
        for one in queue.partition(number).peek(1_000):
            assert found.setdefault(one.payload.decode(), number) == number
    return found


# The sink


def sink(server: EmbeddedRedis, columns: dict[str, Any], make_keys: Any = None, **options: Any) -> Any:
    table = pa.table(columns)
    kinds = {"string": t.StringType(), "int64": t.LongType(), "double": t.DoubleType()}
    schema = t.StructType([t.StructField(one.name, kinds[str(one.type)]) for one in table.schema])
    given = SinkOptions(url=server.url, queue="orders", partitions=COUNT, **options)
    return publish_rows(RowReader.of(given, schema), iter(table.to_batches()), make_keys)


@pytest.mark.promise("The sink puts a row into the partition in which the queue itself would put it.")
def test_a_row_goes_where_the_queue_would_send_it(queue, clean_server):
    """By its partition key, else its tenant, else its deduplication key."""
    names = [f"row {place}" for place in range(40)]
    columns = {
        "payload": names,
        "part": [str(place % 5) if place % 3 == 0 else None for place in range(40)],
        "who": [f"tenant {place % 4}" if place % 2 else None for place in range(40)],
        "key": [f"key {place}" for place in range(40)],
    }
    options = {"partition_key_column": "part", "tenant_column": "who", "dedup_key_column": "key"}
    for published in (40, 0):
        assert sink(clean_server, columns, **options).published == published
    expected = {}
    for name, part, tenant, key in zip(*columns.values(), strict=True):
        expected[name] = partition_of(part or tenant or key, COUNT)
    assert placed(queue) == expected
    assert set(expected.values()) == {0, 1, 2}
    for name, part, tenant, key in zip(*columns.values(), strict=True):
        assert not queue.publish(name, tenant=tenant, deduplication_key=key, partition_key=part), "it is a duplicate"


def test_a_partition_key_may_be_a_number_and_not_empty(queue, clean_server):
    sink(clean_server, {"payload": ["a", "b"], "part": [17, 18]}, partition_key_column="part")
    assert placed(queue) == {"a": partition_of("17", COUNT), "b": partition_of("18", COUNT)}
    with pytest.raises(PayloadValueError, match="column part: a partition key is empty; write null"):
        sink(clean_server, {"payload": ["a"], "part": [""]}, partition_key_column="part")


def test_rows_without_any_key_take_turns(queue, clean_server):
    count = sink(clean_server, {"payload": [f"row {place}" for place in range(30)]}, batch_size=5)
    assert (count.published, count.suppressed) == (30, 0)
    assert [queue.partition(number).stats().pending for number in range(COUNT)] == [10, 10, 10]


@pytest.mark.promise(
    "A stream publishes each row once into a queue with partitions, however often an epoch is repeated."
)
def test_an_epoch_that_is_repeated_in_another_order_publishes_nothing_twice(queue, clean_server):
    """Also rows with the same content that go to different partitions."""
    rows = [(f"row {place % 10}", str(place % 7)) for place in range(100)]

    def publish(some: list[tuple[str, str]], **options: Any) -> Any:
        payloads, parts = zip(*some, strict=True)
        columns = {"payload": list(payloads), "part": list(parts)}
        return sink(clean_server, columns, ContentKeys("query:0:0"), **options)

    publish(rows[:30], partition_key_column="part")
    assert publish(rows[::-1], partition_key_column="part").published == 70
    assert publish(rows, partition_key_column="part").suppressed == 100
    assert publish(rows).published == 100  # by content alone
    assert publish(rows[::-1]).suppressed == 100
    assert queue.stats().pending == 200


# The number of partitions


@pytest.mark.promise("Spark finds the number of partitions by itself, and refuses another one.")
def test_another_number_of_partitions_is_refused_everywhere(queue, clean_server, client):
    for number in range(COUNT):
        queue.partition(number).publish("a")
    before = {key: client.dump(key) for key in client.keys("*")}
    address: dict[str, Any] = {"url": clean_server.url, "queue": "orders"}
    with pytest.raises(PartitionCountError, match="the options say partitions=2"):
        BulkPublisher(PublishOptions(**address, partitions=2))
    options = TableOptions(**address, table="pending", partitions=1)
    with pytest.raises(PartitionCountError, match="the options say partitions=1"):
        TableReader(options, table_schema(options)).partitions()
    with pytest.raises(PartitionCountError, match="the options say partitions=4"):
        ConsumerGroup.open(client, SourceOptions(**address, partitions=4))
    for partition in (Partition(), Partition(1, 2)):
        with (
            JournalReader(QueueAddress(**address), partition) as journal,
            pytest.raises(PartitionCountError, match="partitions=3") as caught,
        ):
            journal.snapshot()
        assert caught.value.queue is not None
        with pytest.raises(PartitionCountError):
            RedisReader(client, QueueAddress(**address).keys, partition).read(("PING",))
    assert {key: client.dump(key) for key in client.keys("*")} == before


# Tables


@pytest.mark.promise("A table has the rows of all partitions of a queue, and says from which each is.")
def test_a_table_has_the_rows_of_all_partitions(queue, clean_server, client):
    def read(table: Any, **more: Any) -> list[tuple[int, str | None]]:
        options = TableOptions(url=clean_server.url, queue="orders", table=table, **more)
        reader = TableReader(options, table_schema(options))
        assert {one.partition.number for one in reader.partitions()} == {0, 1, 2}
        found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        return sorted(((row["partition"], row.get("payload")) for row in found), key=repr)

    for number in range(COUNT):
        part = queue.partition(number)
        for word in ("done", "broken", "claimed", "held"):
            part.publish(f"{word} {number}", tenant="acme" if number else None)
        with part.process_message():
            pass
        with pytest.raises(ZeroDivisionError), part.process_message():
            1 / 0  # noqa: B018  # it must fail
        part.publish(f"later {number}", delay_seconds=3_600)
    group = ConsumerGroup.open(client, SourceOptions(url="redis://unused", queue="orders", consumer_group="g"))
    group.acquire_group()
    assert group.fill_batches(COUNT) == COUNT
    assert read("claimed", consumer_group="g") == [(number, f"claimed {number}") for number in range(COUNT)]
    assert read("pending") == [(number, f"held {number}") for number in range(COUNT)]
    holding = [queue.partition(number).process_message() for number in range(COUNT)]
    for one in holding:
        one.__enter__()
    assert read("processing") == [(number, f"held {number}") for number in range(COUNT)]
    assert read("delayed") == [(number, f"later {number}") for number in range(COUNT)]
    assert read("completed") == [(number, f"done {number}") for number in range(COUNT)]
    assert read("failed") == [(number, f"broken {number}") for number in range(COUNT)]
    assert read("records", records_of="failed") == [(number, None) for number in range(COUNT)]
    journal = read("journal", payload_format="binary")
    assert Counter(number for number, _ in journal) == {
        number: client.xlen(queue.partition(number).key.journal) for number in range(COUNT)
    }
    for one in holding:
        one.__exit__(None, None, None)


def test_rows_of_a_queue_without_partitions_are_from_partition_0(clean_server, client):
    RedisMessageQueue("orders", client=client).publish("a")
    options = TableOptions(url=clean_server.url, queue="orders", table="pending")
    reader = TableReader(options, table_schema(options))
    (row,) = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert (row["payload"], row["partition"]) == ("a", 0)


# The archive


@pytest.fixture
def options(clean_server: EmbeddedRedis, tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(url=clean_server.url, queue="orders", path=str(tmp_path / "archive"), partition_rows=20)


def serials(path: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in archived(path):
        found.setdefault(row["journal"], []).append(row["serial"])
    return found


@pytest.mark.promise("The archive has the journals of all partitions, each entry once.")
def test_each_journal_is_archived_once_under_a_name_with_its_partition(queue, options, client):
    for number in range(COUNT):
        queue.partition(number).publish_many([f"{number}.{place}" for place in range(10 * (number + 1))])
    first = archive_plainly(options)
    assert (first.rows, first.last_serial, first.missing) == (60, 60, [])
    assert archive_plainly(options).rows == 0
    queue.partition(1).publish("one more")
    again = archive_plainly(options)
    assert (again.rows, again.last_serial) == (1, 61)
    found = serials(options.path)
    assert sorted(name.partition("/")[2] for name in found) == ["", "1", "2"]
    table = journal_table(location_of(options.path)).open()
    assert table is not None
    for name, numbers in found.items():
        identity, _, partition = name.partition("/")
        assert numbers == list(range(1, len(numbers) + 1))
        assert application_of("orders", name) == f"redis-exact-queue/{identity}/{partition or 0}/orders"
        assert table.transaction_version(application_of("orders", name)) == len(numbers)
        key = queue.partition(int(partition or 0)).key
        assert client.hget(key.meta, "journal_identity").decode() == identity
        assert client.hget(key.meta, "journal_mark") is not None


@pytest.mark.promise("The archive has the journals of all partitions, each entry once.")
@pytest.mark.parametrize(
    "where",
    ["0", "committed", *(pytest.param(one, marks=pytest.mark.in_full) for one in ("planned", "written", "marked"))],
)
def test_a_run_that_dies_between_partitions_is_completed_by_the_next(queue, options, clean_server, where):
    for number in range(COUNT):
        queue.partition(number).publish_many(["message"] * 30)
    run_mortal(clean_server, where, options.path, 2_000)
    queue.partition(2).publish("one more")
    archive_plainly(options)
    assert {name.partition("/")[2]: len(found) for name, found in serials(options.path).items()} == {
        "": 30,
        "1": 30,
        "2": 31,
    }
    assert all(found == list(range(1, len(found) + 1)) for found in serials(options.path).values())


def test_a_partition_that_was_never_used_has_nothing_to_archive(queue, options, client):
    queue.partition(1).publish("a")
    assert archive_plainly(options).rows == 1
    RedisMessageQueue("bare", client=client, partitions=2).publish("a")
    with pytest.raises(JournalError, match="the queue 'bare' has no journal"):
        archive_plainly(ArchiveOptions(url=options.url, queue="bare", path=options.path))


def test_a_queue_that_grows_keeps_its_archive(client, options):
    single = RedisMessageQueue("orders", client=client, journal=True)
    single.publish("a")
    archive_plainly(options)
    single.publish("b")
    single.grow_partitions(2)
    RedisMessageQueue("orders", client=client, partitions=2, journal=True).partition(1).publish("c")
    assert archive_plainly(options).rows == 2
    assert sorted(found for found in serials(options.path).values()) == [[1], [1, 2]]


# Reports, replays and backfills


def backfill_options(server: EmbeddedRedis, **more: Any) -> BackfillOptions:
    given: dict[str, Any] = {"url": server.url, "queue": "orders", "source": "a.json", "format": "json"}
    return BackfillOptions(**given | {"batch_size": 10, "partitions": COUNT} | more)


@pytest.mark.promise("A backfill spreads its rows over the partitions, and publishes each once.")
def test_a_split_that_is_repeated_publishes_each_row_once(queue, clean_server, monkeypatch):
    """After a crash in the middle, and with tenants, which keep to their partition."""
    monkeypatch.setattr("redis_message_queue.spark.jobs.splits._ROWS_IN_TURN", 7)
    rows: list[dict[str, Any]] = [
        {"payload": b"row %d" % place, "tenant": f"tenant {place % 5}" if place % 2 else None, "file": "a", "start": 0}
        for place in range(200)
    ]

    class Stopped(Exception):
        pass

    def dies() -> Any:
        yield from rows[:137]
        raise Stopped

    with pytest.raises(Stopped):
        publish_splits(dies(), backfill_options(clean_server))
    before = queue.stats().pending
    assert 0 < before < 137
    done = publish_splits(iter(rows), backfill_options(clean_server, batch_size=3))
    assert (done.published, done.suppressed) == (200 - before, before)
    found = placed(queue)
    assert len(found) == 200
    assert set(found.values()) == {0, 1, 2}
    assert all(
        found[one["payload"].decode()] == partition_of(one["tenant"], COUNT)
        for one in rows
        if one["tenant"] is not None
    )
    assert publish_splits(iter(rows), backfill_options(clean_server)).suppressed == 200
    with pytest.raises(SelectionError, match=r"a has changed: .* published into this partition, or the queue has"):
        publish_splits(iter(rows[::-1]), backfill_options(clean_server))


def test_two_tasks_on_one_split_of_a_queue_with_partitions_publish_each_row_once(queue, clean_server):
    publishers = [SplitPublisher(backfill_options(clean_server, batch_size=size)) for size in (10, 7)]
    for one in publishers:
        one.begin("a.json", 0)
    for place in range(60):
        for one in publishers:
            one.add(SplitRow(b"row %d" % place, f"tenant {place % 6}".encode()))
    for one in publishers:
        one.finish()
        one.__exit__()
    assert len(placed(queue)) == queue.stats().pending == 60
