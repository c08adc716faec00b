"""Starts a Spark driver in this process: Java found, the same Python on both sides, quiet, in UTC, on loopback."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from redis_message_queue.errors import ConfigurationError
from redis_message_queue.spark.java import find_java

ConfValue = str | int | float | bool

_DEFAULTS: dict[str, ConfValue] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": True,
    # Off by default in Spark, which then refuses a reader that could push filters down.
    "spark.sql.python.filterPushdown.enabled": True,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}
# Not spark.log.level, which is heard only after the first dozen lines. The "default" options of the driver are those
# of an installation: what a user sets as spark.driver.extraJavaOptions comes after them.
_LOGGING = Path(__file__).with_name("quiet-log4j2.properties").as_uri()
_QUIET: dict[str, ConfValue] = {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING}"}
# Where driver and executors are one machine, nothing outside has to reach them.
_LOOPBACK: dict[str, ConfValue] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

# For a short job on little data, as `session(..., **QUICK_START)`. Java's second compiler and its parallel collector
# pay off in long runs: without them a session on two busy cores is up in 6 to 12 s instead of 18 to 37. And Spark
# would make 200 partitions of every shuffle, for tables of a few rows.
QUICK_START: dict[str, ConfValue] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": 2,
}


def session(app_name: str, master: str = "local[*]", **conf: ConfValue) -> SparkSession:
    """A SparkSession ready for use; `conf` takes further settings, under Spark's names, and overrides ours.

    A session that runs already is returned, with those settings changed that can still be changed. Under
    `spark-submit` the master is the one that was given there.
    """
    _check(conf)
    builder = SparkSession.builder.appName(app_name)
    settings = _DEFAULTS | conf
    if not _launched_by_spark_submit():
        prepare(master)
        builder = builder.master(master)
        settings = _QUIET | (_LOOPBACK if _on_this_machine(master) else {}) | settings
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def prepare(master: str = "local[*]") -> None:
    """Set the variables that Spark's launcher reads: JAVA_HOME, PYSPARK_PYTHON and, on one machine, SPARK_LOCAL_IP.

    For programs that build their session themselves. The last two are left alone where they are set.
    """
    os.environ.update(find_java().environment)
    # Otherwise workers run the first python3 on PATH, which need not have this library, nor this version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _on_this_machine(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _launched_by_spark_submit() -> bool:
    """Then the JVM runs already, and its master, Java and addresses were chosen there."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _on_this_machine(master: str) -> bool:
    return master.startswith("local")


def _check(conf: dict[str, ConfValue]) -> None:
    if foreign := [name for name in conf if not name.startswith("spark.")]:
        raise ConfigurationError(
            f"Settings of Spark begin with 'spark.', and these do not: {', '.join(foreign)}. "
            "Write them as **{'spark.sql.shuffle.partitions': 4}."
        )
