"""The tables show what the queue holds, without changing it."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark import consumer_group, tables
from redis_message_queue.spark.consumer_group import GroupPart
from redis_message_queue.spark.options import SourceOptions, TableOptions
from redis_message_queue.spark.table_reader import TableReader
from redis_message_queue.spark.tables import table_schema
from redis_message_queue.values.errors import ConfigurationError

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def queue(client):
    return RedisMessageQueue(
        "orders", client=client, enable_completed_queue=True, enable_failed_queue=True, max_completed_length=None
    )


@pytest.fixture
def read(clean_server):
    """All rows of a table, part by part."""

    def rows(table, **options):
        reader = reader_of(clean_server.url, table, **options)
        parts = reader.partitions()
        return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    return rows


def reader_of(url, table, **options):
    given = TableOptions.from_spark({"url": url, "queue": "orders", "table": table} | options)
    return TableReader(given, table_schema(given))


def everything(client):
    """The whole state of the server, to see that it stays."""
    return {key: client.dump(key) for key in client.scan_iter()}


@pytest.fixture(params=[1_000, 3])
def page(request, monkeypatch):
    """With pages as they are, and with small ones, so that a few rows need several."""
    monkeypatch.setattr(tables, "MAX_MESSAGES", request.param)
    return request.param


# Live tables


def test_headers_are_a_column_of_every_table(client, read):
    queue = RedisMessageQueue("orders", client=client, get_headers=lambda: {"trace": "7"}, enable_failed_queue=True)
    queue.publish_many(["waits", "later"])
    with pytest.raises(LookupError), queue.process_message():
        raise LookupError
    queue.publish("tomorrow", delay_seconds=3600)
    for table in ("pending", "delayed", "failed"):
        assert [row["headers"] for row in read(table)] == [[("trace", "7")]], table
    assert [row["headers"] for row in read("records", recordsOf="failed")] == [[("trace", "7")]]


def test_what_waits_is_a_table(queue, read, client, page):
    queue.publish_many(f"order {number}" for number in range(10))
    queue.publish("for acme", tenant="acme")
    queue.publish("for globex", tenant="globex")
    before = everything(client)
    rows = read("pending")
    assert [row["payload"] for row in rows[:10]] == [f"order {number}" for number in range(10)]
    assert {row["tenant"]: row["payload"] for row in rows[10:]} == {"acme": "for acme", "globex": "for globex"}
    assert {row["queue"] for row in rows} == {"orders"}
    assert {row["delivery_count"] for row in rows} == {0}
    assert {row["id"] for row in rows} == {one.id for one in queue.peek(12)}
    assert everything(client) == before


def test_a_message_that_came_back_has_its_count(queue, read):
    queue.publish("again")
    with pytest.raises(ValueError), queue.process_messages(1):
        raise ValueError
    assert [(row["payload"], row["delivery_count"]) for row in read("pending")] == [("again", 1)]


def test_what_is_in_flight_is_a_table_with_its_leases(queue, read, page):
    queue.publish_many(f"order {number}" for number in range(8))
    with queue.process_messages(5):
        rows = read("processing")
        assert {row["payload"] for row in rows} == {f"order {number}" for number in range(5)}
        assert {row["delivery_count"] for row in rows} == {1}
        assert min(row["lease_until"] for row in rows) > datetime.now(UTC) + timedelta(seconds=60)


def test_what_is_delayed_is_a_table_by_its_time(queue, read, page):
    for number in range(8):
        queue.publish(f"order {number}", delay_seconds=3_600 + number)
    rows = read("delayed", minPartitions="3")
    assert [row["payload"] for row in rows] == [f"order {number}" for number in range(8)]
    assert rows[0]["due_at"] - rows[0]["published_at"] == timedelta(hours=1)


def test_many_that_are_due_at_the_same_time_are_all_there(queue, read, page):
    due = datetime.now(UTC) + timedelta(days=1)
    queue.publish_many((f"order {number}" for number in range(10)), at=due)
    assert {row["payload"] for row in read("delayed", minPartitions="4")} == {f"order {number}" for number in range(10)}


def claim_batch(client, group, count, *, seal=True, ack=False):
    """A batch of a query that does not run any more."""
    query = GroupPart(client, SourceOptions(url="redis://unused", queue="orders", consumer_group=group))
    query.acquire_group()
    query.recover()
    assert query.fill_batch(count) == count
    if seal:
        query.seal_batch()
    if ack:
        query.ack_batch(query.sealed)
    query.release_lease()


@pytest.mark.promise("An operator sees what a streaming query has claimed and can requeue it.")
def test_what_streaming_queries_have_claimed_is_a_table(queue, read, client, monkeypatch):
    queue.publish_many((f"order {number}" for number in range(10)), headers={"trace": "7"})
    claim_batch(client, "reports", 1, ack=True)
    claim_batch(client, "reports", 5)
    claim_batch(client, "reports", 3, seal=False)
    claim_batch(client, "audit", 1)
    before = everything(client)
    monkeypatch.setattr(consumer_group, "_LARGEST_PAGE", 2)
    rows = read("claimed", minPartitions="4")
    seen = [(row["consumer_group"], row["batch"], row["sealed"], row["payload"]) for row in rows]
    assert seen == [
        ("audit", 1, True, "order 9"),
        *(("reports", 2, True, f"order {number}") for number in range(1, 6)),
        *(("reports", 3, False, f"order {number}") for number in range(6, 9)),
    ]
    assert {tuple(row["headers"][0]) for row in rows} == {("trace", "7")}
    assert [row["payload"] for row in read("claimed", consumerGroup="audit")] == ["order 9"]
    assert read("claimed", consumerGroup="nobody") == []
    assert everything(client) == before


def test_a_batch_that_is_acked_but_not_yet_removed_is_not_claimed_any_more(queue, read, client):
    """A query that dies while it removes a large batch leaves the rest of it to the next one."""
    queue.publish_many(["first", "second"])
    for _ in range(2):
        claim_batch(client, "reports", 1)
    client.hset(queue.key.group("reports"), "acked", 1)
    assert [row["payload"] for row in read("claimed")] == ["second"]


def test_a_claimed_message_has_its_delivery_count(queue, read, client):
    queue.publish("again")
    with pytest.raises(ValueError), queue.process_messages(1):
        raise ValueError
    claim_batch(client, "reports", 1)
    assert [(row["payload"], row["delivery_count"]) for row in read("claimed")] == [("again", 2)]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("consumerGroup", "claimed"),
        ("recordsOf", "records"),
        ("tenants", "pending"),
        ("since", "journal"),
        ("until", "journal"),
        ("dueUntil", "delayed"),
    ],
)
def test_an_option_of_another_table_is_refused(clean_server, name, table):
    """Without a word it would have no effect, and somebody would take all rows for those that were asked for."""
    value = {"recordsOf": "dead_letters", "tenants": "acme"}.get(name, "today")
    with pytest.raises(ConfigurationError, match=f"option {name} applies only to table={table}, not to table=comp"):
        reader_of(clean_server.url, "completed", **{name: value})


# Lists and records


def test_what_has_left_is_a_table_with_what_became_of_it(queue, read, client, page):
    queue.publish_many(["good 1", "good 2", "bad"])
    with queue.process_messages(3) as batch:
        for message in batch:
            try:
                if message.payload == b"bad":
                    raise ValueError("no address")
            except ValueError as error:
                batch.fail(message, error)
    before = everything(client)
    assert [row["payload"] for row in read("completed")] == ["good 1", "good 2"]
    (failed,) = read("failed")
    assert (failed["payload"], failed["error_type"], failed["error"]) == ("bad", "ValueError", "no address")
    assert failed["traceback"].endswith('raise ValueError("no address")\nValueError: no address')
    assert failed["published_at"] <= failed["claimed_at"] <= failed["finished_at"]
    assert everything(client) == before


def test_records_are_a_table_without_payloads(queue, read, page):
    queue.publish_many(f"order {number}" for number in range(10))
    with queue.process_messages(10):
        pass
    rows = read("records", recordsOf="completed", minPartitions="3")
    assert [row["id"] for row in rows] == [one.id for one in reversed(queue.records("completed"))]
    assert {row["payload_bytes"] for row in rows} == {7}
    assert "payload" not in rows[0]


def test_dead_letters_are_a_table(client, read):
    queue = RedisMessageQueue("orders", client=client, max_delivery_count=1)
    queue.publish("poison", tenant="acme")
    with pytest.raises(ValueError), queue.process_messages(1):
        raise ValueError
    with queue.process_messages(1, wait_seconds=0) as batch:
        assert not batch
    (row,) = read("dead_letters")
    assert (row["payload"], row["tenant"], row["delivery_count"]) == ("poison", "acme", 1)
    assert row["reason"]
    (record,) = read("records")
    assert record["id"] == row["id"]


def test_payloads_find_their_records_after_a_list_was_cut_by_hand(queue, read, client, page):
    queue.publish_many(f"order {number}" for number in range(10))
    with queue.process_messages(10):
        pass
    client.lrem(queue.key.completed, 1, "order 4")
    client.rpush(queue.key.completed, "by hand")
    client.lpop(queue.key.records("completed"))
    rows = read("completed", minPartitions="3")
    assert [row["payload"] for row in rows] == ["by hand", *(f"order {number}" for number in range(10) if number != 4)]
    assert [row["payload"] for row in rows if row["id"] is None] == ["by hand", "order 9"]


def test_a_record_of_somebody_elses_does_not_spoil_the_table(queue, read, client):
    queue.publish("order")
    with queue.process_messages(1):
        pass
    client.lpush(queue.key.records("completed"), '{"id": 7, "deliveries": "many", "error": {}}', "no record")
    assert [row["id"] for row in read("records", recordsOf="completed")][1:] == [None]


# The journal


def write_journal(client, count=10, at=1_000_000_000_000):
    """As the scripts write it, a second apart."""
    for number in range(1, count + 1):
        fields = {"n": number, "at": (at + number * 1_000) * 1_000, "event": "claimed", "id": "0" * 32, "tenant": ""}
        client.xadd("orders::journal", fields | {"count": 1}, id=f"{at + number * 1_000}-1")


def test_the_journal_is_a_table(read, client, page):
    write_journal(client)
    client.xadd(
        "orders::journal",
        {"n": 11, "at": 1_700_000_000_000_000, "event": "retried", "id": "1" * 32, "tenant": "acme"}
        | {"due": 1_700_000_005_000_000, "failures": 2, "error_type": "ValueError", "payload": "body"},
    )
    rows = read("journal", minPartitions="4")
    assert [row["serial"] for row in rows] == list(range(1, 12))
    assert (rows[0]["event"], rows[0]["tenant"], rows[0]["count"], rows[0]["payload"]) == ("claimed", None, 1, None)
    assert rows[0]["at"] == datetime.fromtimestamp(1_000_000_001, UTC)
    last = rows[-1]
    assert (last["tenant"], last["failures"], last["error_type"], last["payload"]) == ("acme", 2, "ValueError", "body")
    assert (last["due"] - last["at"], last["queue"]) == (timedelta(seconds=5), "orders")


@pytest.mark.promise("Options of the tables (`tenants`, `since`, `until`, `dueUntil`) select exactly these rows.")
def test_the_journal_is_read_from_one_time_to_another(read, client, page):
    write_journal(client)
    client.xadd("orders::journal", {"n": 11, "event": "gap", "first": 11})  # has no time
    start = datetime.fromtimestamp(1_000_000_000, UTC)
    times = {number: (start + timedelta(seconds=number)).isoformat() for number in range(1, 12)}
    assert [row["serial"] for row in read("journal", since=times[8])] == [8, 9, 10]
    assert [row["serial"] for row in read("journal", until=times[3])] == [1, 2]
    assert [row["serial"] for row in read("journal", since=times[4], until=times[6])] == [4, 5]
    assert [row["serial"] for row in read("journal", since="24h")] == []
    assert [row["serial"] for row in read("journal")] == [*range(1, 12)]


def test_an_entry_is_found_by_its_own_time_after_the_clock_went_back(read, client):
    """The id of such an entry is later than its time."""
    write_journal(client)
    client.xadd("orders::journal", {"n": 11, "at": 1_000_000_002_500_000, "event": "claimed", "id": "1" * 32})
    until = datetime.fromtimestamp(1_000_000_003, UTC).isoformat()
    assert [row["serial"] for row in read("journal", until=until)] == [1, 2, 11]
    since = datetime.fromtimestamp(1_000_000_009, UTC).isoformat()
    assert [row["serial"] for row in read("journal", since=since)] == [9, 10]


def test_a_time_that_cannot_be_meant_is_refused(clean_server):
    with pytest.raises(ConfigurationError, match=r"option since must be a time such as 2026-09-21, .* not 'soon'"):
        reader_of(clean_server.url, "journal", since="soon")
    with pytest.raises(ConfigurationError, match=r"option until must be later than since"):
        reader_of(clean_server.url, "journal", since="today", until="yesterday")


# Parts and options


@pytest.mark.parametrize(
    "table", ["pending", "processing", "delayed", "completed", "dead_letters", "records", "journal"]
)
def test_a_table_of_a_queue_that_is_not_there_is_empty(read, table):
    assert read(table) == []


def test_a_table_is_split_for_tasks(queue, clean_server, read, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_A_TASK", 10)
    queue.publish_many(str(number) for number in range(25))
    assert len(reader_of(clean_server.url, "pending").partitions()) == 3
    assert len(reader_of(clean_server.url, "pending", minPartitions="5").partitions()) == 5
    assert [row["payload"] for row in read("pending")] == [str(number) for number in range(25)]


def test_many_small_tenant_queues_share_a_task(queue, clean_server, read):
    for number in range(50):
        queue.publish("x", tenant=f"tenant {number}")
    assert len(reader_of(clean_server.url, "pending").partitions()) == 1
    assert len({row["tenant"] for row in read("pending", minPartitions="7")}) == 50


@pytest.mark.promise("Options of the tables (`tenants`, `since`, `until`, `dueUntil`) select exactly these rows.")
@pytest.mark.parametrize(
    ("names", "left"),
    [
        ("a", {"a"}),
        ("a, b,nobody", {"a", "b"}),
        ("", {None}),
        ("a,", {"a", None}),
        ('["a, b", ""]', {"a, b", None}),
    ],
)
def test_only_the_queues_of_tenants_that_are_asked_for_are_read(queue, read, client, names, left):
    for tenant in ("a", "b", "a, b", None):
        queue.publish("x", tenant=tenant)
    client.config_resetstat()
    assert {row["tenant"] for row in read("pending", tenants=names)} == left
    assert client.info("commandstats")["cmdstat_lrange"]["calls"] == len(left)
    assert "cmdstat_zscan" not in client.info("commandstats")


@pytest.mark.parametrize("names", ["[1]", '["a", null]', "[", "x" * 300])
def test_what_cannot_be_tenants_is_refused(clean_server, names):
    with pytest.raises(ConfigurationError, match="option tenants must be names of tenants with commas between them"):
        reader_of(clean_server.url, "pending", tenants=names)


@pytest.mark.promise("Options of the tables (`tenants`, `since`, `until`, `dueUntil`) select exactly these rows.")
def test_only_messages_that_are_due_by_then_are_read(queue, read, page):
    start = datetime.now(UTC) + timedelta(days=1)
    for hour in range(5):
        queue.publish(str(hour), at=start + timedelta(hours=hour))
    until = (start + timedelta(hours=3)).isoformat()
    assert [row["payload"] for row in read("delayed", dueUntil=until, minPartitions="2")] == ["0", "1", "2"]


def test_a_schema_of_ones_own_is_one_clear_error(clean_server):
    options = TableOptions.from_spark({"url": clean_server.url, "queue": "orders", "table": "pending"})
    with pytest.raises(ConfigurationError, match=r"not that of the table pending: struct<id:string.*Leave it out"):
        TableReader(options, t.StructType().add("a", t.LongType()))


def test_payloads_can_be_bytes(queue, read, client):
    client.lpush(queue.key.completed, b"\xff")
    assert read("completed", payloadFormat="binary")[0]["payload"] == b"\xff"


def test_batches_have_the_schema_that_spark_wants(queue, clean_server):
    queue.publish("x")
    reader = reader_of(clean_server.url, "pending")
    (batch,) = reader.read(reader.partitions()[0])
    assert batch.schema.field("published_at").type == pa.timestamp("us", tz="UTC")
