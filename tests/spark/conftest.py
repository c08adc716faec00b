"""One Spark session for all tests: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from redis_message_queue.spark import session

# Java's second compiler and its parallel collector pay off in long runs: without them a session on two busy cores is up
# in 6 to 12 s instead of 18 to 37. And Spark would make 200 partitions of every shuffle, for tables of a few rows.
QUICKLY: dict[str, str | int] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": 2,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and four attempts a task: without that number Spark retries no task on one machine."""
    started = session("tests", "local[2,4]", **QUICKLY)
    yield started
    started.stop()
