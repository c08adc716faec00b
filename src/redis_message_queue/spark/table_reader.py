"""The batch reader: the contents of a queue as tables, read without changing the queue.

Consumers keep working meanwhile. A table of up to a thousand rows is read in one step. A larger one is read in pages
and by several tasks: a row that moves meanwhile may be missed or seen twice. Rows move when messages are claimed or
settled or become due, and when a list is trimmed to its limit. Lists without a limit and the journal are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
from pyspark import sql as spark_sql
from pyspark.sql import datasource as spark
from pyspark.sql import types as t

from redis_message_queue.spark.connection import RedisReader, open_partitions
from redis_message_queue.spark.options import TableOptions
from redis_message_queue.spark.rows import ColumnEncoder
from redis_message_queue.spark.tables import TABLES, TableSlice, table_schema
from redis_message_queue.values.errors import ConfigurationError

T = TypeVar("T")


class TableReader(spark.DataSourceReader):
    """`spark.read`: reads a table of a queue, and changes nothing."""

    def __init__(self, options: TableOptions, schema: t.StructType) -> None:
        self._table = TABLES[options.table](options)
        self._encoder = ColumnEncoder(_checked(schema, table_schema(options), options.table))

    def partitions(self) -> Sequence[TableSlice]:
        """Return what the table has now, in slices. Spark asks once for each DataFrame that `load` returns."""
        with closing(self._table.options.connect()) as client:
            slices = [
                replace(one, partition=reader.partition)
                for reader in open_partitions(client, self._table.options)
                for one in self._table.slices(reader)
            ]
        # Spark reads a table without partitions as one with a partition of its own making.
        return slices or [TableSlice(())]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TableSlice)
        if not partition.pieces:
            return
        with closing(self._table.options.connect()) as client:
            reader = RedisReader(client, self._table.options.keys, partition.partition)
            for columns in self._table.read(reader, partition):
                yield self._encoder.encode([*columns, [partition.partition.number] * len(columns[0])])


def read_table(session: spark_sql.SparkSession, options: TableOptions) -> spark_sql.DataFrame:
    """Return a table as a DataFrame, without registering the format."""
    reader = TableReader(options, table_schema(options))
    return read_in_tasks(session, reader.partitions(), reader.read, table_schema(options))


def read_in_tasks(
    session: spark_sql.SparkSession,
    slices: Sequence[T],
    read: Callable[[T], Iterator[pa.RecordBatch]],
    schema: t.StructType | str,
) -> spark_sql.DataFrame:
    """Return the rows of slices as a DataFrame. One task reads each slice."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from read(slices[index])

    return session.range(0, len(slices), 1, len(slices)).mapInArrow(run, schema)


def _checked(given: t.StructType, own: t.StructType, table: str) -> t.StructType:
    if [(one.name, one.dataType) for one in given] != [(one.name, one.dataType) for one in own]:
        raise ConfigurationError(
            f"the given schema is not that of the table {table}: {own.simpleString()}. Leave it out, and parse "
            "payloads with from_json."
        )
    return own
