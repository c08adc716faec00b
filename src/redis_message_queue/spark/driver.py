"""Starts a Spark session in this process, with sensible settings: Java, Python, logging, UTC, loopback."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from redis_message_queue.spark.java import find_java
from redis_message_queue.values.errors import ConfigurationError

ConfValue = str | int | float | bool

_DEFAULTS: dict[str, ConfValue] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": True,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    # With room for 100, a refresh and a report compile their queries again each time.
    "spark.sql.codegen.cache.maxEntries": 1_000,
}
# Not spark.log.level, which has no effect on the first dozen lines. The "default" options of the driver come before
# the user's own spark.driver.extraJavaOptions.
_LOGGING = Path(__file__).with_name("quiet-log4j2.properties").as_uri()
_QUIET: dict[str, ConfValue] = {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING}"}
# If driver and executors are one machine, nothing outside has to reach them.
_LOOPBACK: dict[str, ConfValue] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

# For a short job on little data: `session(..., **QUICK_START)`. Without Java's second compiler and its parallel
# collector, which pay off in long runs, a session on two busy cores starts in 6 to 12 s instead of 18 to 37. And Spark
# would make 200 partitions of every shuffle, for tables of a few rows.
QUICK_START: dict[str, ConfValue] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": 2,
}


def session(app_name: str, master: str = "local[*]", **conf: ConfValue) -> SparkSession:
    """Return a SparkSession that is ready for use.

    A running session is returned, with the settings changed that can still be changed.

    Args:
        app_name: The name that Spark shows. Under `spark-submit` a name given there counts, if it is not that of the
            submitted file: that one Spark takes by itself.
        master: Where Spark runs. Under `spark-submit` the master given there counts.
        conf: Further settings under Spark's names. They override ours. Under `spark-submit` what was set there, by
            `--conf` or in spark-defaults.conf, overrides both.

    Raises:
        ConfigurationError: A setting does not start with `spark.`.
        JavaError: There is no Java that Spark can use.
    """
    _check(conf)
    builder = SparkSession.builder
    settings = _DEFAULTS | conf
    if not under_spark_submit():
        if SparkContext._active_spark_context is None:  # otherwise Spark's launcher has read them
            prepare(master)
        builder = builder.master(master).appName(app_name)
        settings = _QUIET | (_LOOPBACK if _on_this_machine(master) else {}) | settings
    else:
        submitted = _submitted_conf()
        settings = {name: value for name, value in settings.items() if not submitted.contains(name)}
        if not _is_named(submitted):
            builder = builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def prepare(master: str = "local[*]") -> None:
    """Set the variables that Spark's launcher reads: JAVA_HOME, PYSPARK_PYTHON and, on one machine, SPARK_LOCAL_IP.

    For programs that build their own session. The last two are not changed if they are set.

    Raises:
        JavaError: There is no Java that Spark can use.
    """
    os.environ.update(find_java().environment)
    # Otherwise workers run the first python3 on PATH, which may lack this library or be another version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _on_this_machine(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def under_spark_submit() -> bool:
    """Return whether the JVM runs already, with the master, Java and addresses that were chosen there."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted_conf() -> SparkConf:
    """Return what was set for `spark-submit`: its JVM is there and has read it."""
    SparkContext._ensure_initialized()
    return SparkConf()


def _is_named(submitted: SparkConf) -> bool:
    """Return whether somebody has chosen the application's name: without one, Spark takes that of the file."""
    return submitted.get("spark.app.name", "") not in ("", "pyspark-shell", Path(sys.argv[0]).name)


def _on_this_machine(master: str) -> bool:
    return master.startswith("local")


def _check(conf: dict[str, ConfValue]) -> None:
    if foreign := [name for name in conf if not name.startswith("spark.")]:
        raise ConfigurationError(
            f"Settings of Spark start with 'spark.', but these do not: {', '.join(foreign)}. "
            "Write them as **{'spark.sql.shuffle.partitions': 4}."
        )
