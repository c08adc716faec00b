"""A wrong use of the format gets a clear error before Spark does anything."""

import itertools
import socketserver
import sys
import threading
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

import redis_message_queue
from pyspark_redis_message_queue import DefaultSource
from redis_message_queue.spark.connection import RedisReader
from redis_message_queue.spark.connector import QueueDataSource
from redis_message_queue.spark.jobs.backfill import BackfillOptions, FinishedFiles
from redis_message_queue.spark.options import SinkOptions, TableOptions
from redis_message_queue.spark.rows import messages_schema
from redis_message_queue.spark.sink import BulkPublisher, QueueStreamWriter, QueueWriter
from redis_message_queue.spark.table_reader import TableReader
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import ConfigurationError

HERE = {"url": "redis://:hush@localhost:6379/0", "queue": "orders"}


def source(**options: str) -> QueueDataSource:
    return QueueDataSource(CaseInsensitiveDict(HERE | options))


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


def test_a_server_that_cannot_be_used_is_named_with_what_is_wrong(ports, subtests):
    for (part, contact), (url, where, says) in itertools.product(FIRST_CONTACTS.items(), UNUSABLE):
        with subtests.test(part=part, url=url):
            with pytest.raises(ConfigurationError) as caught:
                contact({"url": url.format(**ports), "queue": "orders"})
            assert str(caught.value).startswith(f"the server at 127.0.0.1:{ports[where]} {says}")
            assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_a_cluster_that_wants_another_password_is_named_at_once(ports, subtests):
    for url, where, says in (UNUSABLE[0], UNUSABLE[2]):
        options = TableOptions(url=url.format(**ports), queue="orders", table="pending", cluster=True)
        with subtests.test(url=url):
            with pytest.raises(ConfigurationError) as caught:
                options.connect()
            assert str(caught.value).startswith(f"the server at 127.0.0.1:{ports[where]} {says}")
