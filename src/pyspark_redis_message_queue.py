"""Where Spark looks for formats by itself: a top-level module named pyspark_*, with a class DefaultSource."""

from redis_message_queue.spark.connector import QueueDataSource


class DefaultSource(QueueDataSource):
    """The format `redis_message_queue`, without a call of `register`."""
