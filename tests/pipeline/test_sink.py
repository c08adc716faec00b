"""The sink publishes every row once, however often its task or its epoch is run again."""

import random
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.options import SinkOptions
from redis_message_queue.spark.sink import ContentKeys, RowReader, publish_rows
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.values.errors import (
    ConfigurationError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
    QueueBackpressureError,
)

pytestmark = pytest.mark.topic("Streaming queries in Spark")

KINDS = {str: t.StringType(), bytes: t.BinaryType(), int: t.LongType(), float: t.DoubleType()}


@pytest.fixture
def sink(clean_server):
    """Publishes rows as one task would: columns in, what the task reports out."""

    def publish(columns, make_keys=None, rows_a_batch=10_000, **options):
        table = pa.table(columns)
        batches = (batch for batch in table.to_batches(max_chunksize=rows_a_batch))
        return publish_rows(reader(clean_server.url, table, **options), batches, make_keys)

    return publish


def reader(url, table, **options):
    schema = t.StructType()
    for name in table.column_names:
        kind = table.schema.field(name).type
        if pa.types.is_timestamp(kind):
            schema.add(name, t.TimestampType())
        elif pa.types.is_map(kind):
            schema.add(name, t.MapType(t.StringType(), t.StringType()))
        else:
            schema.add(
                name,
                {"string": t.StringType(), "int64": t.LongType(), "double": t.DoubleType()}.get(
                    str(kind), t.BinaryType()
                ),
            )
    return RowReader.of(SinkOptions.from_spark({"url": url, "queue": "out"} | options), schema)


@pytest.fixture
def queue(client):
    return RedisMessageQueue("out", client=client)


def waiting(client, tenant=""):
    """The payloads that wait, the next first."""
    key = f"out::tenant_pending::{tenant}" if tenant else "out::pending"
    return [Envelope(one).payload.decode() for one in reversed(client.lrange(key, 0, -1))]


# Rows and messages


def test_rows_become_messages_in_their_order(sink, client):
    payloads = [f"row {number}" for number in range(2_500)]
    sent = sink({"payload": payloads})
    assert (sent.published, sent.suppressed) == (2_500, 0)
    assert waiting(client) == payloads


def test_a_script_takes_a_thousand_rows(sink, client):
    client.config_resetstat()
    sink({"payload": [str(number) for number in range(3_000)]})
    scripts = client.info("commandstats")
    # Three for the rows; before them the first one is refused, and the state of the queue is written.
    assert scripts["cmdstat_evalsha"]["calls"] + scripts.get("cmdstat_eval", {"calls": 0})["calls"] <= 5


def test_bytes_are_published_as_they_are(sink, client):
    sink({"payload": pa.array([b"\xff\x00"], pa.binary())})
    assert Envelope(client.lindex("out::pending", 0)).payload == b"\xff\x00"


def test_consumers_read_what_was_written(sink, queue):
    sink({"body": ['{"a": 1}']}, payloadColumn="body")
    with queue.process_messages(1) as batch:
        assert [message.json() for message in batch] == [{"a": 1}]


def test_tenants_have_their_own_queues(sink, client):
    sink({"payload": ["a", "b", "c"], "who": ["acme", None, "globex"]}, tenantColumn="who")
    assert (waiting(client, "acme"), waiting(client), waiting(client, "globex")) == (["a"], ["b"], ["c"])


def test_a_delay_is_a_number_of_seconds(sink, queue):
    sink({"payload": ["now", "later", "soon"], "wait": [None, 3_600.0, 0.0]}, delayColumn="wait")
    assert [one.payload for one in queue.peek(10)] == [b"now", b"soon"]
    (later,) = queue.peek(10, source="delayed")
    assert later.payload == b"later"
    assert later.due_at - later.published_at == timedelta(hours=1)


def test_a_delay_is_a_moment(sink, queue):
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    moments = pa.array([due, due - timedelta(days=2), None], pa.timestamp("us", tz="UTC"))
    sink({"payload": ["tomorrow", "yesterday", "now"], "at": moments}, delayColumn="at")
    assert [one.payload for one in queue.peek(10)] == [b"yesterday", b"now"]
    assert [(one.payload, one.due_at) for one in queue.peek(10, source="delayed")] == [(b"tomorrow", due)]


# Repetition


def test_with_a_key_column_a_repeated_task_publishes_nothing(sink, client):
    rows = {"payload": ["a", "b", "c"], "key": [1, 2, 3]}
    assert sink(rows, dedupKeyColumn="key").published == 3
    again = sink(rows, dedupKeyColumn="key")
    assert (again.published, again.suppressed) == (0, 3)
    assert waiting(client) == ["a", "b", "c"]


def test_a_key_is_the_same_key_that_producers_use(sink, client):
    """What the sink has published, a producer with that key function does not publish again."""
    sink({"payload": ['{"order": 7}'], "key": ["7"]}, dedupKeyColumn="key")
    producer = RedisMessageQueue(
        "out", client=client, deduplication=True, get_deduplication_key=lambda message: str(message["order"])
    )
    assert producer.publish({"order": 7}) is False


def test_without_keys_a_repeated_task_publishes_again(sink, client):
    """Batch writes without a key column are at least once."""
    for _ in range(2):
        sink({"payload": ["a", "a"]})
    assert waiting(client) == ["a"] * 4


def test_content_keys_tell_a_repetition_from_a_row_that_is_the_same(sink, client):
    """Three equal rows are three messages, in the first attempt and in all of them together."""
    rows = {"payload": ["a", "a", "b", "a"]}
    assert sink(rows, ContentKeys("query:0:0")).published == 4
    assert sink(rows, ContentKeys("query:0:0")).published == 0
    assert waiting(client) == ["a", "a", "b", "a"]


def test_content_keys_do_not_depend_on_the_order_of_rows(sink, client):
    """An attempt that ends halfway, and one that sees its rows in another order: each row is published once."""
    chance = random.Random(5)
    rows = [f"row {number % 700}" for number in range(2_000)]
    sink({"payload": rows[:1_100]}, ContentKeys("query:0:0"))
    for _ in range(3):
        chance.shuffle(rows)
        sink({"payload": rows}, ContentKeys("query:0:0"), rows_a_batch=chance.randint(100, 900))
    assert Counter(waiting(client)) == Counter(rows)


@pytest.mark.promise("A stream publishes each row once, also if Spark runs a second copy of a slow task.")
def test_two_copies_of_a_task_at_the_same_time_publish_each_row_once(sink, client):
    """As speculative execution runs them: one beside the other, each with its own order of rows.

    Without Spark, which never starts a copy on the machine of the first attempt.
    """
    rows, meet, counts = [f"row {number % 700}" for number in range(2_000)], threading.Barrier(2), []

    def run_copy(seed):
        mine = random.Random(seed).sample(rows, len(rows))
        meet.wait(timeout=60)
        counts.append(sink({"payload": mine}, ContentKeys("query:0:0"), rows_a_batch=50))

    copies = [threading.Thread(target=run_copy, args=(seed,)) for seed in range(2)]
    for one in copies:
        one.start()
    for one in copies:
        one.join()
    assert Counter(waiting(client)) == Counter(rows)
    assert sum(one.published for one in counts) == sum(one.suppressed for one in counts) == len(rows)


def test_headers_travel_with_a_row(sink, queue):
    texts = pa.array([[("trace", "1"), ("b", "ü")], None, []], pa.map_(pa.string(), pa.string()))
    sink({"payload": ["a", "b", "c"], "texts": texts}, headersColumn="texts")
    assert [one.headers for one in queue.peek(3)] == [{"trace": "1", "b": "ü"}, None, None]


def test_content_is_payload_tenant_and_delay(sink, queue):
    """Rows that differ in one of them are not each other's repetition, whichever comes first."""
    rows: dict[str, list[Any]] = {"payload": ["a", "a", "a"], "who": ["x", "y", "x"], "wait": [0.0, 0.0, 60.0]}
    columns = {"tenantColumn": "who", "delayColumn": "wait"}
    sink({name: values[:1] for name, values in rows.items()}, ContentKeys("query:0:0"), **columns)
    again = sink({name: values[::-1] for name, values in rows.items()}, ContentKeys("query:0:0"), **columns)
    assert (again.published, again.suppressed) == (2, 1)
    assert (queue.tenants(), queue.stats().delayed) == ({"x": 1, "y": 1}, 1)


@pytest.mark.parametrize("scope", ["query:0:1", "query:1:0", "other:0:0"])
def test_another_partition_batch_or_query_is_no_repetition(sink, client, scope):
    sink({"payload": ["a"]}, ContentKeys("query:0:0"))
    assert sink({"payload": ["a"]}, ContentKeys(scope)).published == 1


def test_a_key_is_forgotten_after_its_time(sink, client):
    sink({"payload": ["a"], "key": ["k"]}, dedupKeyColumn="key", messageDeduplicationLogTtlSeconds="120")
    assert 0 < client.pttl("out::deduplication::k") <= 120_000


# A queue without room


def test_a_full_queue_is_waited_for(sink, queue):
    """A slow consumer empties it; no more than the limit ever wait, and every row arrives."""
    done, most, seen = threading.Event(), 0, []

    def consume():
        nonlocal most
        while not done.is_set() or queue.stats().pending:
            most = max(most, queue.stats().pending)
            with queue.process_messages(20, wait_seconds=0.05) as batch:
                seen.extend(message.payload.decode() for message in batch)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        payloads = [str(number) for number in range(500)]
        assert sink({"payload": payloads}, maxPendingLength="50").published == 500
    finally:
        done.set()
        consumer.join()
    assert seen == payloads
    assert most <= 50


def test_a_queue_that_stays_full_is_an_error_in_the_end(sink, client):
    with pytest.raises(QueueBackpressureError, match=r"the queue is full for 0\.2 s: max_pending_length is 10"):
        sink({"payload": ["x"] * 25}, maxPendingLength="10", pendingOverloadBlockTimeoutSeconds="0.2")
    assert len(waiting(client)) == 10


def test_a_tenants_own_limit_is_waited_for_too(sink, client):
    rows = {"payload": ["x"] * 6, "who": ["a"] * 6}
    with pytest.raises(QueueBackpressureError, match="max_pending_per_tenant is 5"):
        sink(rows, tenantColumn="who", maxPendingPerTenant="5", pendingOverloadBlockTimeoutSeconds="0")
    assert len(waiting(client, "a")) == 5


# Rows that will not do


NO_KEY = pa.array([None], pa.string())


@pytest.mark.parametrize(
    ("columns", "options", "error", "says"),
    [
        ({"payload": ["a", None]}, {}, PayloadTypeError, "column payload is null in a row"),
        ({"payload": ["a" * 11]}, {"maxPayloadBytes": "10"}, PayloadTooLargeError, "column payload has 11 bytes"),
        ({"payload": ["a"], "k": NO_KEY}, {"dedupKeyColumn": "k"}, PayloadValueError, "column k: .* null"),
        ({"payload": ["a"], "k": [""]}, {"dedupKeyColumn": "k"}, PayloadValueError, "column k: .* empty"),
        ({"payload": ["a"], "w": [""]}, {"tenantColumn": "w"}, PayloadValueError, "column w: tenant must have"),
        (
            {"payload": ["a"], "h": pa.array([[("a", "x" * 20_000)]], pa.map_(pa.string(), pa.string()))},
            {"headersColumn": "h"},
            PayloadValueError,
            "column h: the row returned headers of",
        ),
        ({"payload": ["a"], "d": [-1.0]}, {"delayColumn": "d"}, ConfigurationError, "column d: a delay in seconds"),
        ({"payload": ["a"], "d": [float("nan")]}, {"delayColumn": "d"}, ConfigurationError, "column d: .* finite"),
    ],
)
def test_a_row_that_will_not_do_is_one_error_that_names_the_column(sink, client, columns, options, error, says):
    with pytest.raises(error, match=says):
        sink(columns, **options)
    assert client.keys() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"payloadColumn": "body"}, r"there is no column body \(payloadColumn\); the columns are: payload, n, twice"),
        ({"tenantColumn": "TWICE"}, r"more than one column TWICE \(tenantColumn\)"),
        ({"payloadColumn": "n"}, r"column n \(payloadColumn\) must be string or binary, not bigint; make it"),
        ({"tenantColumn": "n"}, r"column n \(tenantColumn\) must be string, not bigint; cast it"),
        ({"delayColumn": "payload"}, r"column payload \(delayColumn\) must be a number of seconds or a timestamp"),
    ],
)
def test_a_column_that_will_not_do_is_an_error_before_any_task(options, says):
    schema = t.StructType()
    for name, kind in {"payload": str, "n": int, "twice": str, "Twice": str}.items():
        schema.add(name, KINDS[kind])
    with pytest.raises(ConfigurationError, match=says):
        RowReader.of(SinkOptions.from_spark({"url": "redis://localhost", "queue": "out"} | options), schema)


def test_a_column_is_found_in_another_case_as_spark_does(sink, client):
    sink({"PayLoad": ["a"]})
    assert waiting(client) == ["a"]


# In Spark


# So large that few fit into the buffers between two workers, where they would wait until the task ends.


def test_a_key_suppresses_rows_of_its_own_tenant_alone(sink, client):
    """As a producer's deduplication key does."""
    rows = {"payload": ["a", "b", "c"], "key": ["k", "k", "k"], "who": ["acme", "globex", None]}
    for published in (3, 0):
        assert sink(rows, dedupKeyColumn="key", tenantColumn="who").published == published
    assert (waiting(client, "acme"), waiting(client, "globex"), waiting(client)) == (["a"], ["b"], ["c"])
    producer = RedisMessageQueue("out", client=client)
    assert producer.publish("d", tenant="acme", deduplication_key="k") is False
