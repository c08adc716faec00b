"""The format `redis_message_queue` of Spark: which part of the connector reads and writes, and how Spark finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from redis_message_queue.errors import ConfigurationError
from redis_message_queue.spark.options import SinkOptions, SourceOptions, TableOptions, refuse_unknown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from redis_message_queue.spark.sink import QueueStreamWriter, QueueWriter
    from redis_message_queue.spark.source import QueueStreamReader
    from redis_message_queue.spark.tables import TableReader

FORMAT = "redis_message_queue"


class QueueDataSource(DataSource):
    """A queue as a source and a sink of Spark. The parts are imported where they are used: workers start slowly."""

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_unknown(options)
        self.options = options  # type: ignore[assignment]  # Spark's own mapping, whose keys know no case

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the table that is asked for, or of a message."""
        from redis_message_queue.spark.rows import messages_schema
        from redis_message_queue.spark.tables import table_schema

        if self.options.get("table") is not None:
            return table_schema(TableOptions.of(self.options))
        return messages_schema(SourceOptions.of(self.options).payload_format)

    def reader(self, schema: StructType) -> TableReader:
        from redis_message_queue.spark.tables import TableReader

        return TableReader(TableOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> QueueStreamReader:
        if self.options.get("table") is not None:
            raise ConfigurationError("option table is for spark.read; a stream reads what waits in the queue")
        from redis_message_queue.spark.rows import rows_of
        from redis_message_queue.spark.source import QueueStreamReader

        options = SourceOptions.of(self.options)
        return QueueStreamReader(options, rows_of(schema, options.queue, options.payload_format))

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        from redis_message_queue.spark.sink import QueueWriter, RowReader

        if overwrite:
            raise ConfigurationError(
                "mode overwrite would have to remove what waits in the queue; use .mode('append'), and queue.purge() "
                "if that is what you want"
            )
        return QueueWriter(RowReader.of(SinkOptions.of(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        """With outputMode complete every batch publishes the whole result: that is what the mode means."""
        from redis_message_queue.spark.sink import QueueStreamWriter, RowReader

        return QueueStreamWriter(RowReader.of(SinkOptions.of(self.options), schema))


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let filters reach the tables.

    Spark finds the format by itself where this package is installed on every machine; this is for the rest.
    """
    spark.dataSource.register(QueueDataSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", True)
