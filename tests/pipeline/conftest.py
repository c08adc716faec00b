"""None of these tests starts Java: they call the pipeline as Spark does, in this process."""

from collections.abc import Iterator

import pytest
from pyspark import SparkContext


@pytest.fixture(autouse=True)
def no_java() -> Iterator[None]:
    before = SparkContext._gateway
    yield
    assert SparkContext._gateway is before, "this test has started a JVM; it belongs to tests/spark"
