"""Brings the archived entries of each message together: a row with its payload, its attempts and its last state.

Tasks do so for their own files, and what they found of one message is put together in a second step. Between the two,
Spark moves a few large blobs that it does not look into: to take a million rows in and out of Python costs it more than
all the rest.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from redis_message_queue.spark.jobs.archive_tables import ArchiveTable, DataFile, balanced
from redis_message_queue.spark.jobs.figures import ENTERING, LEAVING, NEVER
from redis_message_queue.spark.jobs.times import Array
from redis_message_queue.spark.table_reader import read_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The newest value of an entry's column that is not null, and the name it gets.
_NEWEST = {
    **{name: name for name in ("payload", "tenant", "reason", "error_type", "replay_of", "headers")},
    "event": "state",
}
# The greatest number in an entry's column.
_COUNTS = {"count": "delivery_count", "failures": "failures"}
_TIMES = {"published_at": ENTERING, "finished_at": LEAVING}  # when such an entry was written
_GREATEST = (*_COUNTS.values(), "finished_at")
COLUMNS = (*_NEWEST.values(), *_COUNTS.values(), *_TIMES)
_BYTES_AT_ONCE = 64 * 1024 * 1024
_BYTES_A_TASK = 16 * 1024 * 1024  # compressed
_ROWS_A_TASK = 500_000
_BLOB_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def read_messages(
    spark: "SparkSession", table: ArchiveTable, queue: str, columns: Collection[str] = COLUMNS
) -> "DataFrame":
    """Return a row for each archived message of a queue: its id and these columns."""
    files = table.files(queue)
    table.check(files, queue)
    sources = (column for column, name in (_NEWEST | _COUNTS).items() if name in columns)
    read = table.batch_reader(list(dict.fromkeys(("id", "serial", "at", "event", *sources))))
    groups = balanced(files, spark.sparkContext.defaultParallelism, _ROWS_A_TASK)
    rows, size = sum(one.rows for one in files), sum(one.size for one in files)
    parts = max(spark.sparkContext.defaultParallelism, -(-rows // _ROWS_A_TASK), -(-size // _BYTES_A_TASK))
    schema, partial = _schema(table, columns), _schema(table, columns, with_serials=True)

    def gather(wanted: list[DataFile]) -> Iterator[pa.RecordBatch]:
        for entries in _portions(read(wanted)):
            yield from _packed(_of_entries(entries, columns).combined(partial), parts)

    def put_together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = pa.concat_tables([partial.empty_table(), *_unpacked(batches)])
        yield from _of_parts(found, columns).combined(schema).to_batches()

    blobs = read_in_tasks(spark, groups, gather, "part int, rows binary")
    return blobs.repartitionById(parts, "part").mapInArrow(put_together, from_arrow_schema(schema))


def has_event(spark: "SparkSession", table: ArchiveTable, queue: str, event: str) -> bool:
    """Return whether an entry of this kind is archived. Only one column is read, of files that may have it."""
    read = table.batch_reader(("event",))
    files = [one for one in table.files(queue) if one.may_have("event", event)]
    if not files:
        return False
    groups = balanced(files, spark.sparkContext.defaultParallelism, 20 * _ROWS_A_TASK)

    def find(wanted: list[DataFile]) -> Iterator[pa.RecordBatch]:
        if any(pc.any(pc.equal(batch.column("event"), event)).as_py() for batch in read(wanted)):
            yield pa.RecordBatch.from_pydict({"found": [True]})

    # In one job: isEmpty() would start one for the first slice, and another one for the rest.
    return bool(read_in_tasks(spark, groups, find, "found boolean").collect())


def _serial(name: str) -> str:
    return f"{name}_serial"


def _schema(table: ArchiveTable, columns: Collection[str], *, with_serials: bool = False) -> pa.Schema:
    """The columns of a message. What a task finds in its files also says which entry each value is from."""
    own, count = table.schema, pa.int64()
    kinds = {name: own.field(column).type for column, name in _NEWEST.items()}
    kinds |= dict.fromkeys(_COUNTS.values(), count) | dict.fromkeys(_TIMES, own.field("at").type)
    known = [pa.field(name, kind) for name, kind in kinds.items() if name in columns]
    serials = [pa.field(_serial(name), count) for name in _NEWEST.values() if with_serials and name in columns]
    return pa.schema([own.field("id"), *known, *serials])


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put batches together, but not more bytes than a task can hold."""
    found: list[pa.RecordBatch] = []
    for batch in batches:
        found.append(batch)
        if sum(one.nbytes for one in found) >= _BYTES_AT_ONCE:
            yield pa.Table.from_batches(found)
            found = []
    if found:
        yield pa.Table.from_batches(found)


def _packed(messages: pa.Table, parts: int) -> Iterator[pa.RecordBatch]:
    """Put the rows of each part into a blob. All rows of a message are in the same part."""
    ids = messages.column("id").cast(pa.binary()).to_pylist()
    part_of = np.fromiter((zlib.crc32(one) % parts for one in ids), np.int64, len(ids))
    by_part = messages.take(np.argsort(part_of, kind="stable"))
    ends = np.cumsum(np.bincount(part_of, minlength=parts))
    for part, (start, end) in enumerate(pairwise((0, *ends))):
        blob = pa.BufferOutputStream()
        with pa.ipc.new_stream(blob, messages.schema, options=_BLOB_OPTIONS) as writer:
            writer.write_table(by_part.slice(start, end - start))
        rows = pa.array([memoryview(blob.getvalue())], pa.binary())
        yield pa.RecordBatch.from_arrays([pa.array([part], pa.int32()), rows], ["part", "rows"])


def _unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    for batch in batches:
        for blob in batch.column("rows"):
            yield pa.ipc.open_stream(blob.as_buffer()).read_all()


@dataclass(frozen=True)
class _Parts:
    """What is known of messages, in rows of which several may be about one message."""

    ids: pa.Array
    newest: Mapping[str, tuple[pa.Array, Array]]  # values, and the serials of their entries: NEVER without a value
    numbers: Mapping[str, Array]  # NEVER where there is none

    def combined(self, schema: pa.Schema) -> pa.Table:
        """Return one row for each message."""
        encoded = pc.dictionary_encode(self.ids)
        code, messages = encoded.indices.to_numpy(), len(encoded.dictionary)
        columns: dict[str, pa.Array] = {"id": encoded.dictionary}
        for name, (values, serials) in self.newest.items():
            known = np.flatnonzero(serials != NEVER)
            known = known[np.argsort(serials[known], kind="stable")]
            place = np.full(messages, -1)
            place[code[known]] = known  # the last one counts
            columns[name] = values.take(pa.array(place, mask=place < 0))
            columns[_serial(name)] = pa.array(serials[place] if len(serials) else serials, mask=place < 0)
        for name, numbers in self.numbers.items():
            known = np.flatnonzero(numbers != NEVER)
            if name in _GREATEST:
                found = np.full(messages, NEVER)
                np.maximum.at(found, code[known], numbers[known])
            else:
                found = np.full(messages, np.iinfo(np.int64).max)
                np.minimum.at(found, code[known], numbers[known])
                found[found == np.iinfo(np.int64).max] = NEVER
            columns[name] = pa.array(found, mask=found == NEVER)
        return pa.Table.from_arrays([columns[one.name].cast(one.type) for one in schema], schema=schema)


def _of_entries(entries: pa.Table, columns: Collection[str]) -> _Parts:
    wanted = pc.and_(pc.is_valid(entries.column("id")), pc.not_equal(entries.column("event"), "duplicate"))
    entries = entries.filter(wanted).combine_chunks()
    serials = entries.column("serial").to_numpy()
    at = _numbers(entries, "at")
    numbers = {name: _numbers(entries, column) for column, name in _COUNTS.items() if name in columns}
    for name, events in _TIMES.items():
        if name in columns:
            is_one = pc.is_in(entries.column("event"), value_set=pa.array(events)).to_numpy()
            numbers[name] = np.where(is_one, at, NEVER)
    newest = {}
    for column, name in _NEWEST.items():
        if name in columns:
            values = _whole(entries, column)
            newest[name] = (values, np.where(values.is_valid().to_numpy(zero_copy_only=False), serials, NEVER))
    return _Parts(_whole(entries, "id"), newest, numbers)


def _of_parts(parts: pa.Table, columns: Collection[str]) -> _Parts:
    newest = {
        name: (_whole(parts, name), _numbers(parts, _serial(name))) for name in _NEWEST.values() if name in columns
    }
    numbers = {name: _numbers(parts, name) for name in (*_COUNTS.values(), *_TIMES) if name in columns}
    return _Parts(_whole(parts, "id"), newest, numbers)


def _whole(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)


def _numbers(table: pa.Table, name: str) -> Array:
    numbers: Array = table.column(name).cast(pa.int64()).fill_null(NEVER).to_numpy()
    return numbers
