"""The Delta tables of an archive: where they are, how files get into them, and how they are read.

Data files and the log of a table go through one storage layer, that of the `deltalake` package, so a path may be a
directory or a URL of an object store. Whoever can read Delta tables can read an archive.
"""

import contextlib
import errno
import json
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema

from redis_message_queue.spark.table_reader import read_in_tasks
from redis_message_queue.values import checks
from redis_message_queue.values.errors import ArchiveConflictError, ArchiveError, ConfigurationError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

PARTITIONED_BY = ("queue", "date")
_PARTITION_FIELDS = (pa.field("queue", pa.string()), pa.field("date", pa.date32()))
_ROWS_A_TASK = 500_000
DRIVER_ROW_LIMIT = 10_000  # rows that the driver handles itself: starting the first tasks takes seconds
_WRITTEN_AT_ONCE = 1 << 19  # bytes
_MOST_COMMITS, _LONGEST_PAUSE_SECONDS = 40, 0.5  # of one commit, while other queues commit too
READ_AT_ONCE = 64_000_000  # bytes
_MOST_ROWS_AT_ONCE = 65_536
_LONGEST_NAME = 255  # bytes of a directory's name, on the usual file systems
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Location:
    """A directory or URL, and the options of its storage. Tasks get a copy of it."""

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # they may contain secrets

    @property
    def is_local(self) -> bool:
        return not _SCHEME.match(self.uri)

    def below(self, name: str) -> "Location":
        return Location(f"{self.uri}/{name}", self.storage_options)

    def filesystem(self) -> pa_fs.FileSystem:
        """Return the files below this location. Paths are relative, with slashes."""
        from deltalake.fs import DeltaStorageHandler

        if self.is_local and not os.path.isdir(self.uri):  # an archive that is only read may be read-only
            self.create()
        with translate_storage_errors(self.uri):
            return pa_fs.PyFileSystem(DeltaStorageHandler(self.uri, dict(self.storage_options)))

    def create(self) -> None:
        """Create the directory, if it is one, and raise an error now if nothing can be written to it.

        Raises:
            ArchiveError: It cannot be created or written to. An object store says so at the first write.
        """
        if self.is_local:
            with translate_storage_errors(self.uri):
                os.makedirs(self.uri, exist_ok=True)
                if not os.access(self.uri, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.uri)

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file. Readers see the old content or the new one."""
        with (
            translate_storage_errors(self.uri),
            self.filesystem().open_output_stream(path) as file,
            pa.BufferedOutputStream(file, 2 * _WRITTEN_AT_ONCE) as buffered,
        ):
            # The storage takes bytes. The stream would pass on a buffer of Arrow that is larger than its own.
            for start in range(0, len(content), _WRITTEN_AT_ONCE):
                buffered.write(content[start : start + _WRITTEN_AT_ONCE])

    def sync(self, paths: Iterable[str]) -> None:
        """Write files of a local directory to disk. An object store has them when it says so."""
        if self.is_local:
            for path in paths:
                full = os.path.join(self.uri, path)
                for name in (full, os.path.dirname(full)):
                    handle = os.open(name, os.O_RDONLY)
                    try:
                        os.fsync(handle)
                    finally:
                        os.close(handle)


def location_of(
    path: str, storage_options: Mapping[str, str] | None = None, spark: "SparkSession | None" = None
) -> Location:
    """Return the location of a path or URL.

    Raises:
        ConfigurationError: The path has a scheme that is not supported, or executors would not see it.
    """
    checks.text("path", path)
    scheme = _SCHEME.match(path)
    if scheme is None:
        master = "local" if spark is None else spark.conf.get("spark.master", "local") or ""
        if not master.startswith("local"):
            raise ConfigurationError(
                f"{path!r} is a directory of the driver, which the executors of {master} do not "
                "see. Use a URL such as s3://bucket/archive, or file:///mnt/archive if all of them share that "
                "directory."
            )
        return Location(os.path.abspath(path), storage_options or {})
    if scheme[1].lower() == "file":
        return Location(os.path.abspath(unquote(urlsplit(path).path)), storage_options or {})
    if scheme[1].lower() == "dbfs":
        raise ConfigurationError(
            f"{path!r} is not supported. On Databricks use a volume, file:///Volumes/..., or file:///dbfs/..."
        )
    if "://" not in path:
        raise ConfigurationError(f"{path!r} is neither a directory nor a URL. Write a URL as {scheme[1]}://...")
    return Location(path.rstrip("/"), storage_options or {})


@contextlib.contextmanager
def translate_storage_errors(uri: str, queue: str | None = None) -> Iterator[None]:
    """Raise our errors in place of those of the storage layer, which are long and colored."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise ArchiveConflictError(
            f"another run has changed the table at {uri} meanwhile; run this one again, which goes on after what has "
            "been committed",
            queue=queue,
        ) from error
    except (DeltaError, OSError) as error:
        raise ArchiveError(f"the storage at {uri} failed: {_reason(error)}", queue=queue) from error


def _reason(error: Exception) -> str:
    """Return the first and the last line of an error, which is what happened and its deepest cause."""
    lines = [_COLOURS.sub("", line).strip(" \u21b3") for line in str(error).splitlines()]
    found = [line for line in lines if line] or [type(error).__name__]
    return ": ".join(dict.fromkeys((found[0], found[-1])))


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table, as the log of the table describes it."""

    path: str
    size: int
    rows: int
    queue: str
    date: str
    # Of a column the least and the greatest value, and how many rows have none. Times are texts of ISO 8601 in UTC.
    statistics: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def may_lie_within(self, column: str, least: Any, greatest: Any) -> bool:
        """Return whether a row may have a value between these two."""
        first, last, *_ = self.statistics.get(column, (least, greatest))
        return bool(first <= greatest and last >= least)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "DataFile":
        return cls(**json.loads(text))


class TaskRunner(Protocol):
    """Runs work on each slice and returns the results: in the tasks of Spark, or in a test in this process."""

    def __call__(self, slices: Sequence[T], work: Callable[[T], str | None]) -> list[str]: ...


def in_tasks(spark: "SparkSession") -> TaskRunner:
    """Return a runner that uses one task for each slice.

    Without a DataFrame: the first query of a session takes Java 5 s of processor time. Workers of Python are not shared
    with queries, so a job that has queries anyway is better off with `read_in_tasks`.
    """

    def run(slices: Sequence[T], work: Callable[[T], str | None]) -> list[str]:
        if not slices:
            return []
        results = spark.sparkContext.parallelize(slices, len(slices)).map(work).collect()
        return [one for one in results if one is not None]

    return run


def in_driver(slices: Sequence[T], work: Callable[[T], str | None]) -> list[str]:
    """Run the work here, one after the other: for less than the first job of Spark costs."""
    return [result for one in slices if (result := work(one)) is not None]


class ArchiveTable:
    """One table of an archive, partitioned by queue and date."""

    def __init__(self, archive: Location, name: str, schema: pa.Schema, statistics: Sequence[str] = ()) -> None:
        self.location = archive.below(name)
        self.name = name
        self._with_statistics = statistics  # the columns whose least and greatest values let readers skip files
        self.file_schema = schema  # partition columns are not in the files
        self.schema = pa.schema([*schema, *_PARTITION_FIELDS])

    def open(self) -> "DeltaTable | None":
        """Return the newest state of the table, or None if there is no table yet."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            with contextlib.suppress(TableNotFoundError):
                return DeltaTable(self.location.uri, storage_options=dict(self.location.storage_options))
        except Exception as error:
            with translate_storage_errors(self.location.uri):
                raise error from None
        return None

    def open_or_create(self) -> "DeltaTable":
        """Return the newest state of the table, which is created if there is none."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import CommitFailedError

        self.location.create()
        found = self.open()
        if found is None:
            # Two runs may create it at once, and the second one finds that of the first.
            with translate_storage_errors(self.location.uri), contextlib.suppress(CommitFailedError):
                DeltaTable.create(
                    self.location.uri,
                    Schema.from_arrow(self.schema),
                    mode="ignore",
                    partition_by=list(PARTITIONED_BY),
                    storage_options=dict(self.location.storage_options),
                )
            found = self.open()
        assert found is not None
        return found

    # -- writing

    def write_file(self, queue: str, date: str, batches: Iterable[pa.RecordBatch]) -> DataFile | None:
        """Write rows into a new file. It belongs to the table only when it is committed. None if there are no rows."""
        statistics = ColumnStatistics(self._with_statistics)
        path = f"{_directory_of(queue)}/date={date}/{uuid.uuid4().hex}.parquet"
        found = iter(batches)
        first = next(found, None)
        if first is None:
            return None
        files = self.location.filesystem()
        rows = 0
        with (
            translate_storage_errors(self.location.uri, queue),
            files.open_output_stream(path) as file,
            pq.ParquetWriter(file, self.file_schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            while first is not None:
                rows += first.num_rows
                statistics.add(first)
                writer.write_batch(first)
                first = next(found, None)
        return DataFile(path, files.get_file_info(path).size, rows, queue, date, statistics.values())

    def commit(
        self,
        files: Sequence[DataFile],
        queue: str,
        application: str,
        known: int | None,
        version: int,
        *,
        replace: bool = False,
    ) -> None:
        """Make files part of the table, once for each version of an application.

        A commit of another queue that comes in between is no conflict: this one is tried again on top of it.

        Raises:
            ArchiveConflictError: Another run has committed a version of the same application since ``known``.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        for attempt in range(_MOST_COMMITS):
            table = self.open_or_create()
            if table.transaction_version(application) != known:
                break
            with translate_storage_errors(self.location.uri, queue), contextlib.suppress(CommitFailedError):
                table.create_write_transaction(
                    [_add_action(one) for one in files],
                    "overwrite" if replace else "append",
                    table.schema(),
                    partition_by=list(PARTITIONED_BY),
                    partition_filters=[("queue", "=", queue)] if replace else None,
                    commit_properties=CommitProperties(app_transactions=[Transaction(application, version)]),
                )
                self.location.sync([*(one.path for one in files), f"_delta_log/{table.version():020}.json"])
                return
            time.sleep(random.uniform(0, _LONGEST_PAUSE_SECONDS * min(1, attempt / 8)))
        raise ArchiveConflictError(
            f"another run has changed the {self.name} of {queue!r} in the archive meanwhile; run this one again, which "
            "goes on after what has been committed",
            queue=queue,
        )

    # -- reading

    def files(self, queue: str | None = None) -> list[DataFile]:
        """Return the files that the table has now."""
        table = self.open()
        if table is None:
            return []
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [_data_file(one) for one in actions if queue is None or one["partition.queue"] == queue]

    def stored_paths(self) -> set[str]:
        """Return the paths of all data files that are stored, whether or not they belong to the table."""
        with translate_storage_errors(self.location.uri):
            found = self.location.filesystem().get_file_info(pa_fs.FileSelector("", recursive=True))
        return {one.path for one in found if one.is_file and not one.path.startswith("_delta_log/")}

    def check(self, files: Sequence[DataFile], queue: str) -> None:
        """Check that every file is there in its full size.

        Raises:
            ArchiveError: Files are missing or were changed. It names them.
        """
        found = self.location.filesystem().get_file_info([one.path for one in files]) if files else []
        bad = [
            f"{one.path} ({one.rows:,} rows) {'is missing' if info.type == pa_fs.FileType.NotFound else 'was changed'}"
            for one, info in zip(files, found, strict=True)
            if info.size != one.size
        ]
        if bad:
            raise damaged(self.location.uri, queue, bad)

    def verify(self, files: Iterable[DataFile]) -> None:
        """Read files from their beginning to their end, and compare their pages with the checksums of these.

        Raises:
            ArchiveError: A file is missing or was changed. It names the file.
        """
        read = _reader(self.location, self.schema)
        for one in files:
            for _ in read([one]):
                pass

    def read(
        self,
        spark: "SparkSession",
        queue: str,
        columns: Collection[str] | None = None,
        chosen: Callable[[DataFile], bool] = lambda _: True,
    ) -> "DataFrame":
        """Return the rows of a queue in some files, as they are committed now. Tasks check the rows that they read."""
        wanted = pa.schema([one for one in self.schema if columns is None or one.name in columns])
        files = [one for one in self.files(queue) if chosen(one)]
        self.check(files, queue)
        if not files:
            return spark.createDataFrame([], from_arrow_schema(wanted))
        return read_in_tasks(spark, list(grouped(files)), _reader(self.location, wanted), from_arrow_schema(wanted))

    def read_locally(self, queue: str, columns: Sequence[str], wanted: Callable[[DataFile], bool]) -> pa.Table:
        """Return the rows of some files without Spark."""
        schema = pa.schema([one for one in self.schema if one.name in columns])
        files = [one for one in self.files(queue) if wanted(one)]
        return pa.Table.from_batches(_reader(self.location, schema)(files), schema)


def damaged(uri: str, queue: str, what: Sequence[str]) -> ArchiveError:
    """Return the error for an archive whose files are not those that its log names."""
    more = f" and {len(what) - 5:,} more" if len(what) > 5 else ""
    return ArchiveError(
        f"the archive at {uri} is damaged: {', '.join(what[:5])}{more}. Restore these files. Or accept the loss with "
        "DeltaTable(...).repair() of the deltalake package; the report then names the entries that are missing.",
        queue=queue,
    )


def grouped(files: Sequence[DataFile], rows: float = _ROWS_A_TASK) -> Iterator[list[DataFile]]:
    """Put small files together, so that each task has enough to do, and those with neighbouring serials."""
    group: list[DataFile] = []
    for one in sorted(files, key=lambda file: (file.date, file.statistics.get("serial", (0,))[0], file.path)):
        if group and sum(each.rows for each in group) + one.rows > rows:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _reader(location: Location, schema: pa.Schema) -> Callable[[list[DataFile]], Iterator[pa.RecordBatch]]:
    def read(files: list[DataFile]) -> Iterator[pa.RecordBatch]:
        filesystem = location.filesystem()
        for one in files:
            try:
                yield from _batches(filesystem, one, schema)
            # Damaged bytes make Arrow raise about everything: OSError, ArrowInvalid, KeyError, MemoryError.
            except Exception as error:
                raise _unreadable(filesystem, location, one, error) from error

    return read


def _batches(filesystem: pa_fs.FileSystem, one: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file. Pages have checksums, if this library wrote them, and are compared with these."""
    stored = [kind.name for kind in schema if kind.name not in PARTITIONED_BY]
    with (
        filesystem.open_input_file(one.path) as file,
        pq.ParquetFile(file, page_checksum_verification=True) as parquet,
    ):
        if parquet.metadata.num_rows != one.rows:
            raise _Changed(f"has {parquet.metadata.num_rows:,} of its rows")
        found = _stored(parquet, stored) if stored else [pa.RecordBatch.from_pydict({"": pa.nulls(one.rows)})]
        rows = 0
        for batch in found:
            rows += batch.num_rows
            columns = [
                pa.repeat(pa.scalar(getattr(one, kind.name)).cast(kind.type), batch.num_rows)
                if kind.name in PARTITIONED_BY
                else batch.column(kind.name).cast(kind.type)
                for kind in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        if rows != one.rows:  # the checksums of pages do not protect the footer, which says how many there are
            raise _Changed(f"has {rows:,} of its rows")


def _stored(parquet: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file in portions of about READ_AT_ONCE: payloads may have a megabyte each."""
    sizes = [parquet.metadata.row_group(place).total_byte_size for place in range(parquet.num_row_groups)]
    rows = max(1, min(_MOST_ROWS_AT_ONCE, parquet.metadata.num_rows * READ_AT_ONCE // max(1, sum(sizes))))
    groups: list[int] = []
    for place, size in enumerate(sizes):
        # Arrow would keep what it has read of all row groups that it is asked for.
        if groups and sum(sizes[one] for one in groups) + size > READ_AT_ONCE:
            yield from parquet.iter_batches(rows, groups, columns)
            groups = []
        groups.append(place)
    yield from parquet.iter_batches(rows, groups, columns)


class _Changed(Exception):
    """A file is not the one that was committed."""


def _unreadable(filesystem: pa_fs.FileSystem, location: Location, one: DataFile, error: Exception) -> ArchiveError:
    """Return the error for a file that cannot be read: it is missing or damaged, or its storage failed."""
    file = f"{one.path} ({one.rows:,} rows)"
    if isinstance(error, FileNotFoundError):
        return damaged(location.uri, one.queue, [f"{file} is missing"])
    if isinstance(error, _Changed):
        return damaged(location.uri, one.queue, [f"{one.path} {error}"])
    try:  # Arrow raises OSError for bytes that make no sense, and for a storage that fails. The latter has no bytes.
        with filesystem.open_input_file(one.path) as opened:
            while opened.read(_WRITTEN_AT_ONCE):
                pass
    except OSError as failure:
        return ArchiveError(f"the storage at {location.uri} failed to read {file}: {_reason(failure)}", queue=one.queue)
    return damaged(location.uri, one.queue, [f"{file} was changed, and cannot be read as Parquet: {_reason(error)}"])


def _directory_of(queue: str) -> str:
    """Return the directory for the files of a queue, which is the one that `deltalake` uses when it compacts them.

    Some readers, such as Polars, take the values of partitions from paths and ignore those of the log. They need the
    same directories in the path of every file. They read a name that is too long for a directory as null.
    """
    directory = f"queue={quote(queue, safe='')}"
    return directory if len(directory) <= _LONGEST_NAME else "queue=__HIVE_DEFAULT_PARTITION__"


def _add_action(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    statistics = {
        "numRecords": file.rows,
        "minValues": {name: least for name, (least, _, _) in file.statistics.items() if least is not None},
        "maxValues": {name: greatest for name, (_, greatest, _) in file.statistics.items() if greatest is not None},
        "nullCount": {name: nulls for name, (_, _, nulls) in file.statistics.items()},
    }
    partition = {"queue": file.queue, "date": file.date}
    return AddAction(file.path, file.size, partition, int(time.time() * 1000), True, json.dumps(statistics))


def _data_file(action: Mapping[str, Any]) -> DataFile:
    names = [name[4:] for name in action if name.startswith("min.") and action[name] is not None]
    return DataFile(
        unquote(action["path"]),
        action["size_bytes"],
        action["num_records"],
        action["partition.queue"],
        action["partition.date"].isoformat(),
        {
            name: (
                _stored_value(action[f"min.{name}"]),
                _stored_value(action[f"max.{name}"]),
                action[f"null_count.{name}"],
            )
            for name in names
        },
    )


def _stored_value(value: Any) -> Any:
    """Return the value of a statistic as it is stored: a time as text, which has the order of times."""
    return value.astimezone(UTC).strftime(_TIME) if isinstance(value, datetime) else value


class ColumnStatistics:
    """Follows the least and greatest values of columns in batches that pass by."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._found: dict[str, list[Any]] = {name: [None, None, 0] for name in columns}

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        for name, known in self._found.items():
            column = batch.column(name)
            span = pc.min_max(column).as_py()
            least = [one for one in (known[0], span["min"]) if one is not None]
            greatest = [one for one in (known[1], span["max"]) if one is not None]
            known[:] = [min(least, default=None), max(greatest, default=None), known[2] + column.null_count]

    def values(self) -> dict[str, Sequence[Any]]:
        return {
            name: (_stored_value(least), _stored_value(greatest), nulls)
            for name, (least, greatest, nulls) in self._found.items()
        }
