"""One Spark session for all tests: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from redis_message_queue.spark import session
from redis_message_queue.spark.driver import QUICK_START


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and four attempts a task: without that number Spark retries no task on one machine."""
    started = session("tests", "local[2,4]", **QUICK_START)
    yield started
    started.stop()
