"""How the jobs write Parquet by Spark: times in microseconds, which everybody reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark still writes the 96-bit times of old Hive by itself.
_TIMES = "spark.sql.parquet.outputTimestampType"


def save(rows: "DataFrame", directory: str) -> None:
    """Into a directory that is not there yet."""
    with _setting(rows.sparkSession, _TIMES, "TIMESTAMP_MICROS"):
        rows.write.parquet(directory)


@contextmanager
def _setting(spark: "SparkSession", name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))
