"""Spark finds the format, and what is wrong reaches the user of a session."""

import sys
import time
from contextlib import nullcontext

import pytest
from pyspark.errors import PySparkException

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark import QueueListener, register, translate_errors
from redis_message_queue.values.errors import CorruptMessageError, JobError, PayloadTypeError
from tests.docs.pages import DOCS, README, blocks_of, keeps
from tests.pipeline.test_connector import HERE
from tests.spark.streaming_query import begun, wait_for

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


@pytest.mark.promise("`translate_errors` raises an error of the source, the sink or a table as one line.")
def test_what_is_wrong_with_a_row_reaches_the_user_in_one_line(spark, clean_server):
    register(spark)
    rows = spark.sql("select string(null) as payload")
    with pytest.raises(PayloadTypeError, match=r"^column payload is null in a row, .*$") as caught, translate_errors():
        rows.write.format("redis_message_queue").options(url=clean_server.url, queue="orders").mode("append").save()
    assert "\n" not in str(caught.value)
    with pytest.raises(JobError, match=r"^the query failed: \[\w+.*$"), translate_errors("the query"):
        spark.sql("select nothing").collect()


@pytest.mark.promise("`translate_errors` raises an error of the source, the sink or a table as one line.")
def test_what_is_wrong_with_a_stream_reaches_the_user_in_one_line(spark, clean_server, client, tmp_path, caplog):
    register(spark)
    RedisMessageQueue("orders", client=client, codec=bytes).publish(b"\xff")
    listener = QueueListener()
    spark.streams.addListener(listener)
    stream = spark.readStream.format("redis_message_queue").options(url=clean_server.url, queue="orders").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query = begun(writer)
    with pytest.raises(CorruptMessageError, match=r"^a payload is not UTF-8\. Read all .*$"), translate_errors():
        query.awaitTermination()
    wait_for(lambda: f"the streaming query {query.id} failed: CorruptMessageError: a payload is not" in caplog.text)
    spark.streams.removeListener(listener)


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


def test_the_pages_about_spark_do_what_they_say(spark, clean_server, client, tmp_path):
    """Their blocks in their order; the query that never ends is stopped when it has done all there is."""
    said = {}

    def note(*values):
        said[sys._getframe(1).f_lineno] = " ".join(map(str, values))

    register(spark)
    names = {"print": note}
    blocks = [block for block in blocks_of(README) if "spark" in block.code]
    RedisMessageQueue("orders", client=client).publish_many([{"number": 1, "customer": "acme"}] * 3)
    blocks += [block for name in ("spark.md", "watch-spark-queries.md") for block in blocks_of(DOCS / "how-to" / name)]
    for block in blocks:
        code = block.code.replace("redis://localhost:6379/0", clean_server.url)
        code = code.replace("s3://bucket/checkpoints/items", str(tmp_path)).replace("lake/", f"{tmp_path}/lake/")
        code = code.replace("start_http_server(9000", "start_http_server(0")  # 9000 may be taken
        code = code.replace("query.awaitTermination()", "query.processAllAvailable(); query.stop()")
        raises = pytest.raises(PayloadTypeError) if "with translate_errors" in code else nullcontext()
        with raises:
            run_block(compile("\n" * (block.line - 1) + code, str(block.page), "exec"), names)
        for line, promise in block.promises.items():
            assert keeps(promise, [said[line]])
    assert sorted(one.payload or "" for one in RedisMessageQueue("items", client=client).peek(10)) == [
        b"cups",
        b"tea",
        b"tea",
    ]
