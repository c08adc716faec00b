"""One Spark session for all tests, until a test fails: then it is replaced, so that no other test suffers from it.

A call to the JVM that was interrupted, by a signal or by an exception, leaves its answer on the connection, where the
next call would read it. So nothing that was in use when a test failed is used again: the JVM is killed, and the next
test that needs a session starts one. For the same reason no signal ends a test that takes too long. A thread beside it
kills the JVM, and whatever the test was waiting for there fails at once.
"""

import contextlib
import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.context import SQLContext

from redis_message_queue.spark import session
from redis_message_queue.spark.driver import QUICK_START
from tests import depth

ROOT = Path(__file__).parents[2]
_LOOK_AGAIN_SECONDS = 0.5
# Checking the classes of Spark takes a fifth of the time that a session needs to start and to write its first rows.
_UNCHECKED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
# Compiling a query to Java classes and replanning it while it runs cost more than the few rows of a test.
_FOR_FEW_ROWS = (
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    "-Dspark.sql.adaptive.enabled=false",
    *("-Dspark.sql.ui.retainedExecutions=5", "-Dspark.sql.ui.explainMode=simple"),
    *("-Dspark.ui.retainedJobs=5", "-Dspark.ui.retainedStages=5", "-Dspark.ui.retainedTasks=20"),
    "-Dspark.ui.liveUpdate.period=-1",
)
# The usual class starts a program of the system for each file of a checkpoint, which takes longer than its micro-batch.
_STREAMS = "org.apache.spark.sql.execution.streaming"
_CHECKPOINTS = (
    f"-Dspark.sql.streaming.checkpointFileManagerClass={_STREAMS}.checkpointing.FileSystemBasedCheckpointFileManager",
)


def set_java_options(environment: pytest.MonkeyPatch) -> None:
    """For every JVM that Spark's launcher starts, those of drivers in processes of their own as well."""
    if not depth.FULL:  # which runs Spark as users do
        path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        environment.setenv("SPARK_TESTS_PYTHONPATH", path)
        environment.setenv("SPARK_TESTS_PYTHON", sys.executable)
        environment.setenv("PYSPARK_PYTHON", str(Path(__file__).parent / "workers" / "python"))
        environment.setenv("SPARK_SUBMIT_OPTS", " ".join((*_UNCHECKED, *_FOR_FEW_ROWS, *_CHECKPOINTS)))


class SharedSession:
    """Starts a session when one is asked for and there is none."""

    def get(self) -> SparkSession:
        """Two cores, and four attempts a task: without that number Spark retries no task on one machine."""
        return session("tests", "local[2,4]", **QUICK_START)

    def stop(self) -> None:
        """At the end of all tests."""
        if running := SparkSession.getActiveSession():
            running.stop()

    def discard(self) -> None:
        """Kill the JVM and forget all that belongs to it, without asking it for anything."""
        gateway, context = SparkContext._gateway, SparkContext._active_spark_context
        kill_java()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
        if context is not None:
            context._jsc = None
            if (updates := context._accumulatorServer) is not None:
                updates.shutdown()
        if gateway is None:
            return
        gateway.shutdown_callback_server()
        gateway._gateway_client.close()
        if gateway.proc is not None:
            gateway.proc.wait()
            gateway.proc.stdin.close()
        del gateway, context
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # for the connection of a call that was interrupted
            gc.collect()


def kill_java() -> bool:
    """Whether there was one. Its Python workers end with it."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None or gateway.proc.poll() is not None:
        return False
    gateway.proc.kill()
    return True


@contextlib.contextmanager
def time_limit(seconds: float, on_kill: Callable[[], None]) -> Iterator[None]:
    """Kill the JVM if this takes longer, again if another has been started by then."""
    ended = threading.Event()

    def watch() -> None:
        wait = seconds
        while not ended.wait(wait):
            wait = _LOOK_AGAIN_SECONDS
            if kill_java():
                on_kill()

    watcher = threading.Thread(target=watch, name="time limit of a Spark test", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def jobs_so_far(spark: SparkSession) -> int:
    """How many jobs the session has run."""
    count: int = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
    return count
