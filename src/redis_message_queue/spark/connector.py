"""The Spark format `redis_message_queue`: which part reads and writes, and how Spark finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from redis_message_queue.spark.options import SinkOptions, SourceOptions, TableOptions, refuse_unknown
from redis_message_queue.values.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from redis_message_queue.spark.sink import QueueStreamWriter, QueueWriter
    from redis_message_queue.spark.source import QueueStreamReader
    from redis_message_queue.spark.table_reader import TableReader

FORMAT = "redis_message_queue"


class QueueDataSource(DataSource):
    """A queue as a Spark source and sink. Its parts are imported where they are used, because workers start slowly."""

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_unknown(options)
        self.options = options  # type: ignore[assignment]  # Spark's own case-insensitive mapping

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the table that is asked for, or of a message."""
        from redis_message_queue.spark.rows import stream_schema
        from redis_message_queue.spark.tables import table_schema

        if self.options.get("table") is not None:
            return table_schema(TableOptions.from_spark(self.options))
        stream = SourceOptions.from_spark(self.options)
        return stream_schema(stream.payload_format, stream.invalid_payloads)

    def reader(self, schema: StructType) -> TableReader:
        from redis_message_queue.spark.table_reader import TableReader

        return TableReader(TableOptions.from_spark(self.options), schema)

    def streamReader(self, schema: StructType) -> QueueStreamReader:
        if self.options.get("table") is not None:
            raise ConfigurationError("option table is for spark.read; a stream reads the pending messages of the queue")
        from redis_message_queue.spark.rows import row_encoder
        from redis_message_queue.spark.source import QueueStreamReader

        options = SourceOptions.from_spark(self.options)
        rows = row_encoder(schema, options.queue, options.payload_format, options.invalid_payloads)
        return QueueStreamReader(options, rows)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        from redis_message_queue.spark.sink import QueueWriter, RowReader

        if overwrite:
            raise ConfigurationError(
                "mode overwrite would remove the pending messages of the queue. Use .mode('append'), and queue.purge() "
                "if you do want to remove them."
            )
        return QueueWriter(RowReader.of(SinkOptions.from_spark(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        """Return a writer. With outputMode complete every epoch publishes the whole result, as the mode says."""
        from redis_message_queue.spark.sink import QueueStreamWriter, RowReader

        return QueueStreamWriter(RowReader.of(SinkOptions.from_spark(self.options), schema))


def register(spark: SparkSession) -> None:
    """Register the format with a session.

    You need this where Spark does not find the format by itself: it must be installed on every machine for that.
    """
    spark.dataSource.register(QueueDataSource)
