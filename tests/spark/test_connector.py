"""Spark finds the format, and a wrong use of it gets a clear error."""

import json
import socketserver
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import CaseInsensitiveDict

import redis_message_queue
from pyspark_redis_message_queue import DefaultSource
from redis_message_queue import RedisMessageQueue
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.spark import register
from redis_message_queue.spark.connection import RedisReader
from redis_message_queue.spark.connector import QueueDataSource
from redis_message_queue.spark.jobs.backfill import BackfillOptions, FinishedFiles
from redis_message_queue.spark.options import SinkOptions, TableOptions
from redis_message_queue.spark.rows import messages_schema
from redis_message_queue.spark.sink import BulkPublisher, QueueStreamWriter, QueueWriter
from redis_message_queue.spark.table_reader import TableReader
from tests.docs.pages import DOCS, blocks_of, keeps

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
    table = source(table="pending")
    assert isinstance(table.reader(table.schema()), TableReader)
    assert isinstance(source(dedupKeyColumn="id").writer(schema, overwrite=False), QueueWriter)
    assert isinstance(source(dedupKeyColumn="id").streamWriter(schema, overwrite=False), QueueStreamWriter)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"consumerGroup": "a::b"}, "consumerGroup must not contain '::'"),
        ({"cluster": "true", "deadLetterQueue": "poison"}, "'poison' is in another cluster slot"),
        ({"cluster": "true", "queue": "a{b"}, "has braces that are not a hash tag"),
        ({"queue": "jobs::tenant_pending"}, "reserved word 'tenant_pending'"),
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
    with pytest.raises(ConfigurationError, match=r"mode overwrite .* Use \.mode\('append'\)"):
        source().writer(messages_schema(), overwrite=True)


def test_a_batch_without_a_table_and_a_stream_with_one_are_errors():
    with pytest.raises(ConfigurationError, match="option table is missing"):
        source().reader(messages_schema())
    with pytest.raises(ConfigurationError, match=r"option table is for spark\.read"):
        source(table="pending").streamReader(messages_schema())


def test_a_source_does_not_show_its_password():
    table = source(table="pending")
    assert "hush" not in repr(source()) + repr(table.reader(table.schema()))


def test_the_module_that_spark_looks_for_is_a_part_of_the_package():
    """It stands beside the package, not in it, so a wheel has it only if it is named."""
    project = Path(__file__).parents[2]
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert "src/pyspark_redis_message_queue.py" in included
    assert issubclass(DefaultSource, QueueDataSource)
    found = sys.modules[DefaultSource.__module__].__file__
    assert found == str(Path(redis_message_queue.__file__).parents[1] / "pyspark_redis_message_queue.py")


# Servers that cannot be used


class AnswersLikeTheWeb(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


@pytest.fixture
def web_port():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), AnswersLikeTheWeb) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield web.server_address[1]
        web.shutdown()
        thread.join()


@pytest.fixture
def ports(start_server, clean_server, web_port):
    """Of a server with a password, of one without, and of one that does not speak Redis."""
    locked = start_server(config={"requirepass": "open sesame"})
    return {"locked": locked.port, "open": clean_server.port, "web": web_port}


UNUSABLE = [
    ("redis://:hush@127.0.0.1:{locked}", "locked", "does not accept this user and password. Check them in the url."),
    ("redis://eve:hush@127.0.0.1:{locked}", "locked", "does not accept this user and password. Check them in the url."),
    ("redis://127.0.0.1:{locked}", "locked", "wants a password. Write it into the url: redis://user:password@host"),
    ("redis://:hush@127.0.0.1:{open}/99", "open", "does not have the database 99"),
    ("redis://:hush@127.0.0.1:{web}", "web", "is not a Redis server"),
    ("redis://127.0.0.1:{web}/1?protocol=2", "web", "is not a Redis server"),
]


def table_partitions(table: QueueDataSource) -> Any:
    return table.reader(table.schema()).partitions()


FIRST_CONTACTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "source": lambda here: QueueDataSource(here).streamReader(messages_schema()).initialOffset(),
    "sink": lambda here: BulkPublisher(SinkOptions.from_spark(here)),
    "table": lambda here: table_partitions(QueueDataSource(here | {"table": "pending"})),
    "executor": lambda here: RedisReader(TableOptions(**here, table="pending").connect(), QueueKeys.of("orders")).read(
        ("PING",)
    ),
    "backfill": lambda here: FinishedFiles(BackfillOptions(**here, source="x", format="text")),
}


@pytest.mark.parametrize("part", FIRST_CONTACTS)
@pytest.mark.parametrize(("url", "where", "says"), UNUSABLE)
def test_a_server_that_cannot_be_used_is_named_with_what_is_wrong(ports, url, where, says, part):
    with pytest.raises(ConfigurationError) as caught:
        FIRST_CONTACTS[part]({"url": url.format(**ports), "queue": "orders"})
    assert str(caught.value).startswith(f"the server at 127.0.0.1:{ports[where]} {says}")
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(("url", "where", "says"), [UNUSABLE[0], UNUSABLE[2]])
def test_a_cluster_that_wants_another_password_is_named_at_once(ports, url, where, says):
    options = TableOptions(url=url.format(**ports), queue="orders", table="pending", cluster=True)
    with pytest.raises(ConfigurationError) as caught:
        options.connect()
    assert str(caught.value).startswith(f"the server at 127.0.0.1:{ports[where]} {says}")


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


def run_block(code, names):
    """Again if the source's process took longer to connect than the ten seconds that Spark gives it: see `begun`."""
    give_up = time.monotonic() + 400
    while True:
        try:
            exec(code, names)
            return
        except PySparkException as error:
            if "failed to connect back" not in str(error) or time.monotonic() > give_up:
                raise


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
        code = code.replace("start_http_server(9000", "start_http_server(0")  # 9000 may be taken
        code = code.replace("query.awaitTermination()", "query.processAllAvailable(); query.stop()")
        run_block(compile("\n" * (block.line - 1) + code, str(block.page), "exec"), names)
        for line, promise in block.promises.items():
            assert keeps(promise, [said[line]])
    assert sorted(one.payload or "" for one in RedisMessageQueue("items", client=client).peek(10)) == [
        b"cups",
        b"tea",
        b"tea",
    ]
