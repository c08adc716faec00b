"""Archives the records of completed, failed and dead messages, each once.

They have what the journal does not: the text of an error, and the length and hash of a payload. The lists are trimmed
to their limits, so a record is archived if it is still there when a run reads it. A list changes while it is read: a
record that a run missed is added by the next run, and one that was seen twice is added once.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import to_arrow_schema

from redis_message_queue.protocol.operate.reader import RecordSource
from redis_message_queue.spark.jobs.archive_tables import (
    DRIVER_ROW_LIMIT,
    ArchiveTable,
    ColumnStatistics,
    DataFile,
    Location,
    location_of,
)
from redis_message_queue.spark.jobs.job import JobProgress, OnProgress
from redis_message_queue.spark.options import QueueAddress, TableOptions
from redis_message_queue.spark.table_reader import TableReader, read_in_tasks
from redis_message_queue.spark.tables import TableSlice, records_schema, table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What identifies a record: `list` is completed, failed or dead_letters.
_IDENTITY = ("list", "id", "finished_at")
# In UTC, whatever the time zone of the session.
_DAY = "string(date_from_unix_date(int(unix_micros(finished_at) div 86400000000))) as day"
_SCHEMA = records_schema().add("list", "string")
_Slice = tuple[str, TableReader, TableSlice]  # with the list that it is of


def records_table(archive: Location) -> ArchiveTable:
    """Return the table of an archive that has the records of settled messages."""
    stored = [
        one for one in to_arrow_schema(_SCHEMA, timezone="UTC") if one.name != "queue"
    ]  # the queue is a partition
    return ArchiveTable(archive, "records", pa.schema(stored), ("id", "finished_at"))


class RecordArchiver:
    """Adds to an archive the records that it does not have."""

    def __init__(
        self, spark: "SparkSession | None", location: Location, address: QueueAddress, on_progress: OnProgress
    ) -> None:
        self._spark, self._address, self._on_progress = spark, address, on_progress
        self._table = records_table(location)
        self._application = f"redis-exact-queue/records/{address.queue}"

    def run(self) -> int:
        """Add the new records. Returns how many there were.

        Raises:
            ArchiveConflictError: Another run has added records meanwhile. It may have added the same.
        """
        known = self._table.open_or_create().transaction_version(self._application)
        slices = self._slices()
        if not slices:
            return 0
        if self._spark is None or self._fits_in_driver(slices):
            files = self._add_here(slices)
        else:
            files = self._add_in_tasks(self._spark, slices)
        if not files:
            return 0
        self._table.commit(files, self._address.queue, self._application, known, (known or 0) + 1)
        count = sum(one.rows for one in files)
        self._on_progress(JobProgress("archived", count, None, "records"))
        return count

    def _slices(self) -> list[_Slice]:
        """Return the records that the queue has now, in slices for tasks, with the list of each."""
        readers = {
            name: _reader_of(TableOptions(**self._address.address, table="records", records_of=name))
            for name in get_args(RecordSource)
        }
        return [(name, reader, one) for name, reader in readers.items() for one in reader.partitions() if one.pieces]

    def _fits_in_driver(self, slices: Sequence[_Slice]) -> bool:
        """Return whether the driver does it itself: the first job of Spark would take longer."""
        records: int = sum(stop - start for _, _, one in slices for start, stop in one.pieces)
        return records <= DRIVER_ROW_LIMIT

    def _add_here(self, slices: Sequence[_Slice]) -> list[DataFile]:
        queue, schema = self._address.queue, to_arrow_schema(_SCHEMA, timezone="UTC")
        found = pa.Table.from_batches([batch.cast(schema) for one in slices for batch in _read_slice(one)], schema)
        # A record that was archived before has the same times, so only files that may have them are read.
        times = ColumnStatistics(("finished_at",))
        times.add(found)
        first, last, _ = times.values()["finished_at"]
        archived = self._table.read_locally(
            queue, _IDENTITY, lambda one: first is not None and one.may_lie_within("finished_at", first, last)
        ).select(_IDENTITY)
        archived = archived.filter(pc.is_in(archived.column("id"), value_set=found.column("id")))
        known, new = set(_identities(archived)), []
        for place, identity in enumerate(_identities(found)):
            if None not in identity and identity not in known:
                known.add(identity)
                new.append(place)
        rows = found.take(pa.array(new, pa.int64()))
        days = rows.column("finished_at").cast(pa.date32()).cast(pa.string())
        return [DataFile.from_json(one) for one in _write_days(self._table, queue, rows.append_column("day", days))]

    def _add_in_tasks(self, spark: "SparkSession", slices: Sequence[_Slice]) -> list[DataFile]:
        found = read_in_tasks(spark, slices, _read_slice, _SCHEMA).persist()
        try:
            return self._write(self._unknown(spark, found))
        finally:
            found.unpersist()

    def _unknown(self, spark: "SparkSession", found: "DataFrame") -> "DataFrame":
        """Leave out the records that the archive has."""
        new = (
            found.where("id is not null and finished_at is not null")
            .dropDuplicates(list(_IDENTITY))
            .selectExpr("*", _DAY)
        )
        archived = self._table.read(spark, self._address.queue, _IDENTITY)
        return new.join(archived, list(_IDENTITY), "left_anti")

    def _write(self, new: "DataFrame") -> list[DataFile]:
        table, queue = self._table, self._address.queue

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = list(batches)
            rows = pa.Table.from_batches(found, found[0].schema if found else pa.schema([("day", pa.string())]))
            for file in _write_days(table, queue, rows):
                yield pa.RecordBatch.from_pydict({"file": [file]})

        rows = new.repartition("day").mapInArrow(write, "file string").collect()
        return [DataFile.from_json(row.file) for row in rows]


def _reader_of(options: TableOptions) -> TableReader:
    return TableReader(options, table_schema(options))


def _identities(records: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(records.column(name).to_pylist() for name in _IDENTITY), strict=True)


def _write_days(table: ArchiveTable, queue: str, rows: pa.Table) -> Iterator[str]:
    """Write one file for each day, because the records of a day rarely fill more."""
    for day in sorted(set(rows.column("day").to_pylist())):
        of_day = rows.filter(pc.equal(rows.column("day"), day)).select(table.file_schema.names)
        written = table.write_file(queue, day, of_day.cast(table.file_schema).to_batches())
        if written is not None:
            yield written.to_json()


def _read_slice(wanted: _Slice) -> Iterator[pa.RecordBatch]:
    name, reader, one = wanted
    for batch in reader.read(one):
        yield batch.select(records_schema().names).append_column("list", pa.repeat(name, batch.num_rows))


def read_records(
    spark: "SparkSession", path: str, queue: str, storage_options: Mapping[str, str] | None = None
) -> "DataFrame":
    """Return the archived records of a queue, as they are committed now. There may be no rows."""
    return records_table(location_of(path, storage_options, spark)).read(spark, queue)


def newest_error_texts(
    spark: "SparkSession", location: Location, queue: str, since: str = ""
) -> dict[tuple[str, str], tuple[datetime, str]]:
    """Return the newest text of each error from a date on, by type and reason, with its time."""
    columns = ("error_type", "reason", "finished_at", "error")
    records = records_table(location).read(spark, queue, columns, lambda one: one.date >= since)
    newest = (
        records.where("error <> ''")
        .groupBy(expr("coalesce(error_type, '')"), expr("coalesce(reason, '')"))
        .agg(expr("max(finished_at)"), expr("max_by(error, finished_at)"))
    )
    return {(error_type, reason): (at, error) for error_type, reason, at, error in newest.collect()}
