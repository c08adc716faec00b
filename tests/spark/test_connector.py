"""The format is found by Spark, hands each task to the right part, and says clearly what is wrong."""

import json
import sys
import tomllib
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_redis_message_queue import DefaultSource
from redis_message_queue import RedisMessageQueue
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.spark import register
from redis_message_queue.spark.connector import QueueDataSource
from redis_message_queue.spark.groups import Rules
from redis_message_queue.spark.rows import messages_schema
from redis_message_queue.spark.sink import QueueStreamWriter, QueueWriter
from redis_message_queue.spark.tables import TableReader
from tests.docs.pages import DOCS, blocks_of, keeps
from tests.spark.streaming_query import begun

HERE = {"url": "redis://:hush@localhost:6379/0", "queue": "orders"}


def source(**options: str) -> QueueDataSource:
    return QueueDataSource(CaseInsensitiveDict(HERE | options))


# Without Spark


def test_the_columns_are_those_of_a_message_or_of_the_table():
    assert source().schema() == messages_schema()
    assert source(payloadFormat="binary").schema()["payload"].dataType.simpleString() == "binary"
    assert "due_at" in source(table="delayed").schema().fieldNames()


def test_each_part_gets_its_options():
    schema = messages_schema()
    assert isinstance(source(table="pending").reader(schema), TableReader)
    assert isinstance(source(dedupKeyColumn="id").writer(schema, overwrite=False), QueueWriter)
    assert isinstance(source(dedupKeyColumn="id").streamWriter(schema, overwrite=False), QueueStreamWriter)


def test_the_rules_of_a_queue_reach_the_source():
    limits = {"maxDeliveryCount": "3", "messageTtlSeconds": "60", "maxDeadLetterLength": "9"}
    reader = source(**limits, deadLetterQueue="{orders}:poison", keySeparator=":", hashTag="true")
    assert reader.streamReader(messages_schema())._rules == Rules(
        max_delivery_count=3,
        message_ttl_seconds=60,
        dead_letter_queue="{orders}:poison",
        max_dead_letter_length=9,
        key_separator=":",
        hash_tag=True,
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"consumerGroup": "a::b"}, "consumerGroup must be a name that is not empty and has no '::' in it"),
        ({"cluster": "true", "deadLetterQueue": "poison"}, "'poison' lies in another cluster slot"),
        ({"cluster": "true", "queue": "a{b"}, "has braces that are no hash tag"),
        ({"queue": "jobs::line"}, "reserved word 'line'"),
        ({"deadLetterQueue": "orders::pending"}, "is a key that the queue itself uses"),
        ({"table": "pending", "maxDeliveryCount": "3"}, r"option table is for spark\.read"),
    ],
)
def test_a_name_that_cannot_work_is_an_error_before_the_query_runs(options, says):
    with pytest.raises(ConfigurationError, match=says):
        source(**options).streamReader(messages_schema())


def test_an_unknown_option_is_an_error_before_anything_else():
    with pytest.raises(ConfigurationError, match=r"option tabel is unknown; did you mean table\?"):
        source(tabel="pending")


def test_a_queue_is_not_overwritten():
    with pytest.raises(ConfigurationError, match=r"mode overwrite .* use \.mode\('append'\)"):
        source().writer(messages_schema(), overwrite=True)


def test_a_batch_without_a_table_and_a_stream_with_one_are_errors():
    with pytest.raises(ConfigurationError, match="option table is missing"):
        source().reader(messages_schema())
    with pytest.raises(ConfigurationError, match=r"option table is for spark\.read"):
        source(table="pending").streamReader(messages_schema())


def test_a_source_does_not_show_its_password():
    assert "hush" not in repr(source()) + repr(source(table="pending").reader(messages_schema()))


def test_the_module_that_spark_looks_for_is_a_part_of_the_package():
    """It stands beside the package, not in it, so a wheel has it only if it is named."""
    project = Path(__file__).parents[2]
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert "src/pyspark_redis_message_queue.py" in included
    assert issubclass(DefaultSource, QueueDataSource)
    assert Path(sys.modules[DefaultSource.__module__].__file__) == project / "src" / "pyspark_redis_message_queue.py"


# In Spark


@pytest.fixture
def found_by_itself(spark):
    """A session in which nobody has registered anything, and which pushes no filters down."""
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", False)
    return session


@pytest.fixture
def queue(client):
    return RedisMessageQueue("orders", client=client)


def test_spark_finds_the_format_by_itself_and_filters_without_pushdown(found_by_itself, clean_server, queue):
    queue.publish_many(["one", "two"], tenant="acme")
    queue.publish("three")
    table = found_by_itself.read.format("redis_message_queue").options(url=clean_server.url, queue="orders")
    rows = table.option("table", "pending").load().where("tenant = 'acme'").select("payload").collect()
    assert [row.payload for row in rows] == ["one", "two"]


def test_a_registered_format_reads_its_tables_with_filters(spark, clean_server, queue):
    register(spark)
    queue.publish_many(json.dumps({"amount": amount}) for amount in range(10))
    queue.publish("{}", tenant="acme")
    table = spark.read.format("redis_message_queue").options(url=clean_server.url, queue="orders", table="pending")
    amount = f.get_json_object("payload", "$.amount").cast("int")
    assert table.load().where("tenant is null").agg(f.sum(amount)).first()[0] == 45
    assert table.load().where("tenant in ('acme', 'globex')").count() == 1
    assert queue.stats().pending == 11


def test_what_spark_wrote_spark_reads(spark, clean_server, queue):
    register(spark)
    rows = spark.range(100).selectExpr("string(id) as payload", "if(id % 2 = 0, 'even', null) as who")
    options = {"url": clean_server.url, "queue": "orders"}
    rows.write.format("redis_message_queue").options(**options, tenantColumn="who").mode("append").save()
    table = spark.read.format("redis_message_queue").options(**options, table="pending").load()
    assert {(row.tenant, row["count"]) for row in table.groupBy("tenant").count().collect()} == {
        ("even", 50),
        (None, 50),
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tabel": "pending"}, "option tabel is unknown; did you mean table?"),
        ({"table": "pending", "queue": ""}, "option queue must not be empty"),
    ],
)
def test_what_is_wrong_with_an_option_reaches_the_user(spark, options, says):
    register(spark)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("redis_message_queue").options(**HERE | options).load().collect()
    assert f"redis_message_queue.errors.ConfigurationError: {says}" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_what_is_wrong_with_a_row_reaches_the_user(spark, clean_server):
    register(spark)
    rows = spark.sql("select string(null) as payload")
    with pytest.raises(PySparkException) as caught:
        rows.write.format("redis_message_queue").options(url=clean_server.url, queue="orders").mode("append").save()
    assert "redis_message_queue.errors.PayloadTypeError: column payload is null in a row" in str(caught.value)


def test_what_waits_goes_through_a_stream_into_another_queue_once(spark, clean_server, queue, client, tmp_path):
    """Parsed on the way; what does not parse is there whole, and the queue is empty in the end."""
    register(spark)
    queue.publish_many([*(json.dumps({"amount": amount}) for amount in range(200)), "no json"])
    options = {"url": clean_server.url}
    orders = spark.readStream.format("redis_message_queue").options(**options, queue="orders")
    rows = orders.schema("amount long, _corrupt_record string").load()
    payloads = rows.selectExpr("coalesce(_corrupt_record, string(amount + 1)) as payload")
    writer = payloads.writeStream.format("redis_message_queue").options(**options, queue="out")
    query = begun(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))
    query.awaitTermination()
    out = RedisMessageQueue("out", client=client)
    assert {one.payload.decode() for one in out.peek(1_000)} == {*map(str, range(1, 201)), "no json"}
    assert (out.stats().pending, queue.stats().pending) == (201, 0)


def test_the_page_about_spark_does_what_it_says(spark, clean_server, client, tmp_path):
    """Its blocks in their order; the query that never ends is stopped when it has done all there is."""
    said = {}

    def note(*values):
        said[sys._getframe(1).f_lineno] = " ".join(map(str, values))

    register(spark)
    names = {"print": note}
    blocks = blocks_of(DOCS / "how-to" / "spark.md")
    for block in blocks:
        code = block.code.replace("redis://localhost:6379/0", clean_server.url)
        code = code.replace("s3://bucket/checkpoints/items", str(tmp_path))
        code = code.replace("query.awaitTermination()", "query.processAllAvailable(); query.stop()")
        exec(compile("\n" * (block.line - 1) + code, str(block.page), "exec"), names)
        for line, promise in block.promises.items():
            assert keeps(promise, [said[line]])
    assert sorted(one.payload for one in RedisMessageQueue("items", client=client).peek(10)) == [
        b"cups",
        b"tea",
        b"tea",
    ]
