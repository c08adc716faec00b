"""Spark finds the format, and what is wrong reaches the user of a session."""

import sys
import time

import pytest
from pyspark.errors import PySparkException

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark import register
from tests.docs.pages import DOCS, blocks_of, keeps
from tests.pipeline.test_connector import HERE

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def queue(client):
    return RedisMessageQueue("orders", client=client)


@pytest.fixture(params=[True, False], ids=["pushdown on", "pushdown off"])
def found_by_itself(request, spark):
    """A session in which nobody has registered anything, and in which Spark may push filters down or not."""
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", request.param)
    return session


@pytest.mark.promise("A DataFrame of a table has all its rows in every action, whatever filters came before.")
def test_a_filter_on_a_table_does_not_stay_for_the_next_action(found_by_itself, clean_server, queue):
    """Spark 4.3 reads with the filters of the action before, if a reader takes any."""
    queue.publish_many(["one", "two"], tenant="acme")
    queue.publish_many(["three", "four", "five"])
    reader = found_by_itself.read.format("redis_message_queue").options(url=clean_server.url, queue="orders")
    table = reader.option("table", "pending").load()
    of_acme = table.where("tenant = 'acme'")
    assert [row.payload for row in of_acme.select("payload").collect()] == ["one", "two"]
    assert table.count() == 5
    assert of_acme.union(table).count() == 7
    table.createOrReplaceTempView("waiting")
    assert found_by_itself.sql("select count(*) from waiting where tenant is null").first()[0] == 3
    assert found_by_itself.sql("select count(*) from waiting").first()[0] == 5
    assert reader.option("tenants", "acme").load().count() == 2
    queue.publish("six")
    assert reader.option("tenants", "acme,").load().count() == 6, "a new load() reads anew"


def test_what_is_wrong_with_an_option_reaches_the_user(spark):
    register(spark)
    wrong = {"table": "pending", "queue": ""}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("redis_message_queue").options(**HERE | wrong).load().collect()
    assert "redis_message_queue.values.errors.ConfigurationError: option queue must not be empty" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_what_is_wrong_with_a_row_reaches_the_user(spark, clean_server):
    register(spark)
    rows = spark.sql("select string(null) as payload")
    with pytest.raises(PySparkException) as caught:
        rows.write.format("redis_message_queue").options(url=clean_server.url, queue="orders").mode("append").save()
    assert "redis_message_queue.values.errors.PayloadTypeError: column payload is null in a row" in str(caught.value)


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
