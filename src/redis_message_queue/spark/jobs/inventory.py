"""The inventory of a queue: how many messages it held at the last archived entry, and the ids that were found in it.

With it the report can tell a message that is missing from one that another program has put there.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from redis_message_queue.spark.jobs.archive_tables import ArchiveTable, DataFile, Location, TaskRunner
from redis_message_queue.spark.journal import JournalSnapshot
from redis_message_queue.spark.options import QueueAddress, Table, TableOptions
from redis_message_queue.spark.table_reader import TableReader
from redis_message_queue.spark.tables import TableSlice, table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLES: tuple[Table, ...] = ("pending", "processing", "delayed")
_COUNTS = ("serial", "pending", "processing", "delayed")
# For each partition a row has the serial and the counts; each other row has the id of a message.
_SCHEMA = pa.schema(
    [pa.field("id", pa.string()), pa.field("journal", pa.string()), *(pa.field(name, pa.int64()) for name in _COUNTS)]
)


def inventory_table(archive: Location) -> ArchiveTable:
    """Return the table of an archive that has the inventories of queues."""
    return ArchiveTable(archive, "inventory", _SCHEMA)


class Inventory:
    """The ids that are in a queue, written to files that are not committed yet."""

    def __init__(self, table: ArchiveTable, queue: str, date: str, files: list[tuple[int, DataFile]]) -> None:
        self._table, self._queue, self._date, self._files = table, queue, date, files

    @classmethod
    def read(cls, address: QueueAddress, location: Location, run_tasks: TaskRunner) -> "Inventory":
        """Read the ids of all messages that are in the queue now."""
        table, queue, today = inventory_table(location), address.queue, datetime.now(UTC).date().isoformat()

        def write(wanted: tuple[TableReader, TableSlice]) -> str | None:
            written = table.write_file(queue, today, _ids(*wanted))
            return None if written is None else json.dumps([wanted[1].partition.number, written.to_json()])

        found = map(json.loads, run_tasks(list(_slices(address)), write))
        return cls(table, queue, today, [(partition, DataFile.from_json(one)) for partition, one in found])

    def commit(self, ends: Mapping[int, tuple[str, JournalSnapshot]]) -> None:
        """Replace the inventory of the queue by this one, of the partitions whose journal has entries: up to here."""
        heads = [
            {"journal": journal, **{name: getattr(end, name) for name in _COUNTS}} for journal, end in ends.values()
        ]
        first = self._table.write_file(self._queue, self._date, [pa.RecordBatch.from_pylist(heads, _SCHEMA)])
        assert first is not None
        files = [one for partition, one in self._files if partition in ends]
        application = f"redis-exact-queue/inventory/{self._queue}"
        known = self._table.open_or_create().transaction_version(application)
        self._table.commit([first, *files], self._queue, application, known, (known or 0) + 1, replace=True)


def _slices(address: QueueAddress) -> Iterator[tuple[TableReader, TableSlice]]:
    for name in _TABLES:
        options = TableOptions(**address.address, table=name, payload_format="binary")
        reader = TableReader(options, table_schema(options))
        for one in reader.partitions():
            if one.pieces:
                yield reader, one


def _ids(reader: TableReader, wanted: TableSlice) -> Iterator[pa.RecordBatch]:
    for batch in reader.read(wanted):
        ids = batch.column("id").cast(pa.string())
        nothing = [pa.nulls(batch.num_rows, kind.type) for kind in _SCHEMA if kind.name != "id"]
        yield pa.RecordBatch.from_arrays([ids, *nothing], schema=_SCHEMA)


def inventory_rows(spark: "SparkSession", location: Location, queue: str) -> tuple[list[dict[str, Any]], "DataFrame"]:
    """Return what each partition held, and the ids that were found in the queue: null for what has none."""
    rows = inventory_table(location).read(spark, queue)
    heads = rows.where("serial is not null").select("journal", *_COUNTS).collect()
    return [row.asDict() for row in heads], rows.where("serial is null").select("id", "date")
