"""The Spark format on a cluster: all keys of a queue, its batches among them, share a slot."""

from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StringType, StructType

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.spark import connection
from redis_message_queue.spark.connection import connect
from redis_message_queue.spark.consumer_group import GroupPart
from redis_message_queue.spark.journal import JournalReader
from redis_message_queue.spark.options import SinkOptions, SourceOptions, Table, TableOptions
from redis_message_queue.spark.sink import RowReader, publish_rows
from redis_message_queue.spark.source import QueueStreamReader
from redis_message_queue.spark.table_reader import TableReader
from redis_message_queue.spark.tables import table_schema
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.values.errors import ConfigurationError, RetryBudgetExhaustedError
from tests.concurrency import beside
from tests.topologies.cluster import Cluster

pytestmark = pytest.mark.topic("Streaming queries in Spark")


def test_a_query_fills_reads_acks_and_releases_batches_on_a_cluster(cluster: Cluster):
    client = cluster.client()
    queue = RedisMessageQueue("orders", client=client, visibility_timeout_seconds=300)
    queue.publish_many([f"message {place}" for place in range(2_500)])
    queue.publish("of a tenant", tenant="acme")
    groups = GroupPart(client, SourceOptions(url="redis://unused", queue="orders", cluster=True))
    groups.acquire_group()
    groups.recover()
    assert groups.fill_batch(2_000) == 2_000
    assert groups.seal_batch() == 1
    assert len(groups.read_batch(1, 0, 3_000)) == 2_000
    groups.ack_batch(1)
    assert groups.fill_batch(300) == 300
    assert queue.stats().processing == 300
    assert groups.release_batches() == 300
    assert (queue.stats().processing, queue.stats().pending, groups.depth()) == (0, 501, 501)
    client.close()


@pytest.mark.promise("The sink and the tables reach a cluster from the URL of any node.")
def test_the_sink_writes_to_a_cluster_and_the_tables_read_from_it(cluster: Cluster, nodes: list[str]):
    where: dict[str, Any] = {"url": nodes[-1], "queue": "orders", "cluster": True}
    columns = {"payload": ["first", "second"], "who": ["acme", None], "key": ["1", "2"]}
    schema = StructType().add("payload", StringType()).add("who", StringType()).add("key", StringType())
    options = SinkOptions(**where, dedup_key_column="key", tenant_column="who")
    rows = pa.RecordBatch.from_pydict(columns)
    for published in (2, 0):
        assert publish_rows(RowReader.of(options, schema), iter([rows]), None).published == published
    with closing(cluster.client()) as client:
        assert RedisMessageQueue("orders", client=client).stats().pending == 2
    asked = TableOptions(**where, table="pending")
    one = TableReader(asked, table_schema(asked))
    found = [row for part in one.partitions() for batch in one.read(part) for row in batch.to_pylist()]
    assert {(row["payload"], row["tenant"]) for row in found} == {("first", "acme"), ("second", None)}


class Payloads:
    """Rows that are payloads alone."""

    schema = StructType()

    def batch(self, stored: Any, delivery_counts: Any) -> Any:
        return [Envelope(one).payload for one in stored]


def reader(url: str, **options: Any) -> QueueStreamReader:
    return QueueStreamReader(SourceOptions(url=url, queue="orders", **options), Payloads())


@pytest.fixture
def nodes(cluster: Cluster) -> list[str]:
    """The URLs of the nodes."""
    return [node.server.url for node in cluster.nodes]


@pytest.mark.promise(
    "With `cluster` the source reads a Redis Cluster from the URL of any node; without it the error names the option."
)
def test_the_source_reads_a_cluster_by_the_url_of_any_node(cluster: Cluster, nodes: list[str]):
    """Driver and executors each find their way from there."""
    with closing(cluster.client()) as client:
        queue = RedisMessageQueue("orders", client=client, visibility_timeout_seconds=300)
        queue.publish_many(["first", "second"])
        for number, url in enumerate(nodes, 1):
            queue.publish("third")
            one = reader(url, cluster=True)
            end = one.latestOffset({"batch": number - 1}, ReadMaxRows(10))
            rows = [row for part in one.partitions({"batch": number - 1}, end) for row in one.read(part)]
            assert rows == [[b"first", b"second", b"third"] if number == 1 else [b"third"]]
            one.commit(end)
            one.stop()
        assert queue.stats().processing == 0


@pytest.mark.promise("Source, sink and tables reach the partitions of a queue on all nodes of a cluster.")
def test_partitions_on_different_nodes_are_written_and_read(cluster: Cluster, nodes: list[str]):
    count = 6
    where: dict[str, Any] = {"url": nodes[0], "queue": "orders", "cluster": True}
    sent = [f"message {place}" for place in range(60)]
    schema = StructType().add("payload", StringType()).add("key", StringType())
    options = SinkOptions(**where, partitions=count, dedup_key_column="key")
    rows = pa.RecordBatch.from_pydict({"payload": sent, "key": sent})
    for published in (60, 0):
        assert publish_rows(RowReader.of(options, schema), iter([rows]), None).published == published
    with closing(cluster.client()) as client:
        queue = RedisMessageQueue("orders", client=client, partitions=count)
        owners = {client.get_node_from_key(queue.partition(number).key.pending).port for number in range(count)}
        assert len(owners) > 1
        asked = TableOptions(**where, table="pending")
        table = TableReader(asked, table_schema(asked))
        found = [row for part in table.partitions() for batch in table.read(part) for row in batch.to_pylist()]
        assert sorted(row["payload"] for row in found) == sorted(sent)
        assert {row["partition"] for row in found} == set(range(count))
        one, start = reader(nodes[-1], cluster=True), {"batches": [0] * count}
        end = one.latestOffset(start, ReadMaxRows(100))
        parts = one.partitions(start, end)
        assert len(parts) == count
        assert sorted(payload.decode() for part in parts for page in one.read(part) for payload in page) == sorted(sent)
        one.commit(end)
        with beside(one.latestOffset, end, ReadMaxRows(100)) as following:
            queue.partition(count - 1).publish("one more")
        if following.result() == end:  # it came after the wait
            assert one.latestOffset(end, ReadMaxRows(100)) != end
        one.stop()
        assert queue.stats().processing == 1


@pytest.mark.promise(
    "With `cluster` the source reads a Redis Cluster from the URL of any node; without it the error names the option."
)
def test_without_the_option_a_cluster_is_one_clear_error_that_names_it(nodes: list[str]):
    """On the node that owns the slot and on those that do not."""
    for url in nodes:
        for options in ({}, {"hash_tag": True}):
            one = reader(url, **options)
            try:
                one.latestOffset({"batch": 0}, ReadMaxRows(10))
            except ConfigurationError as error:
                assert "node of a Redis Cluster. Set the option cluster to true" in str(error)
            else:
                assert options, "only a queue with a hash tag can be served by one node alone"
            finally:
                one.stop()


def test_the_option_on_a_server_alone_is_one_clear_error(server: EmbeddedRedis):
    with pytest.raises(
        ConfigurationError, match="option cluster is true, but this server is not part of a Redis Cluster"
    ):
        connect(server.url, cluster=True)


@pytest.mark.promise("A wrong address fails within seconds in Spark, with an error that names it.")
def test_a_cluster_that_is_away_is_named_after_a_moment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "_FIRST_CONTACT_SECONDS", 0.3)
    with pytest.raises(RetryBudgetExhaustedError, match=r"the Redis Cluster at 127\.0\.0\.1:1 could not") as caught:
        connect("redis://:hush@127.0.0.1:1", cluster=True)
    assert "hush" not in str(caught.value)


@pytest.mark.promise("A table or a job on a cluster node without `cluster` is one error that names the option.")
@pytest.mark.parametrize("table", ["pending", "processing", "delayed", "dead_letters", "records", "journal"])
def test_a_table_on_a_node_without_the_option_is_an_error_and_not_empty(
    cluster: Cluster, nodes: list[str], table: Table
):
    """The keys without a hash tag are not there, on whichever node their slots are."""
    with closing(cluster.client()) as client:
        RedisMessageQueue("orders", client=client, journal=True).publish("one")
    for url in nodes:
        options = TableOptions(url=url, queue="orders", table=table)
        with pytest.raises(ConfigurationError, match=r"node of a Redis Cluster\. Set the option cluster to true"):
            TableReader(options, table_schema(options)).partitions()
        with pytest.raises(ConfigurationError, match="node of a Redis Cluster"), JournalReader(options) as journal:
            journal.state()


def test_dead_letters_in_another_slot_are_refused_before_the_query_runs():
    with pytest.raises(ConfigurationError, match=r"dead_letter_queue 'poison' is in another cluster slot"):
        reader("redis://127.0.0.1:1", cluster=True, dead_letter_queue="poison")
