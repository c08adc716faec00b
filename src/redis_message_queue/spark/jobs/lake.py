"""The tables that are made from archived journals: messages, open messages, counts by minute and hour, incidents.

    <path>/messages         a row for each message that has ended
    <path>/open_messages    a row for each message that has not
    <path>/minutes, hours   sums that add up, of the queue and of each tenant, consumer and error
    <path>/incidents        what a verdict has to account for
    <path>/refreshes        up to which journal entry the others go

Each commit has the number of its refresh as the version of an application transaction, so that nothing is added twice.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from redis_message_queue.spark.jobs.archive_tables import ArchiveTable, DataFile, Location, location_of
from redis_message_queue.values.errors import ArchiveConflictError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTERING = ("published", "redriven")
CLAIMS = ("claimed", "reclaimed")
LEAVING = ("acked", "handed_off", "failed", "dead", "expired", "dropped", "discarded", "cancelled")
STATES = ("waiting", "in_flight", "delayed")
# The states from which an operator removes messages. The journal does not say which messages these were.
REMOVED_FROM = {"pending": "waiting", "orphans": "in_flight", "delayed": "delayed"}
SPREADS = ("waiting", "processing", "handler", "prefetch")
EVENTS = (*ENTERING, "duplicate", *CLAIMS, *LEAVING, "retried", "requeued", "delayed")
COUNTERS = (
    *EVENTS,
    *("entries", "outcomes", "errors", "redelivered"),
    *("served", "withdrawn", "unserved"),  # deliveries that were the first, and messages that left before any
    *(f"removed_{state}" for state in STATES),
    *(f"{state}_change" for state in STATES),
    "unserved_delayed_change",  # of delayed messages that nobody has had
)
BACKLOG_CHANGE = " + ".join(f"{state}_change" for state in STATES)

_TEXT, _COUNT, _TIME, _NUMBER = pa.string(), pa.int64(), pa.timestamp("us", tz="UTC"), pa.float64()


def _schema(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


MESSAGE = _schema(
    id=_TEXT,
    partition=pa.int32(),
    tenant=_TEXT,
    state=_TEXT,  # acked, dead, ..., lost; or waiting, in_flight, delayed
    published_at=_TIME,
    due_at=_TIME,  # the end of its last delay
    available_at=_TIME,  # from when it can be claimed; null while somebody has it
    first_claimed_at=_TIME,
    last_claimed_at=_TIME,
    finished_at=_TIME,
    deliveries=_COUNT,
    attempts=_COUNT,  # that ended
    delivery_count=_COUNT,  # as the queue counts them for its limit
    failures=_COUNT,
    waiting=_NUMBER,  # seconds, of all its deliveries
    handling=_NUMBER,
    prefetch=_NUMBER,
    reason=_TEXT,
    error_type=_TEXT,
    error=_TEXT,
    traceback=_TEXT,
    consumer=_TEXT,
    replay_of=_TEXT,
    headers=pa.map_(_TEXT, _TEXT),
    payload=pa.binary(),
    journal=_TEXT,
    serial=_COUNT,  # of its last entry
)
COUNTS = _schema(
    start=_TIME,
    scope=_TEXT,  # queue, tenant, consumer or error
    name=_TEXT,
    reason=_TEXT,  # of an error
    refresh=_COUNT,
    **dict.fromkeys(COUNTERS, _COUNT),
    peak=_COUNT,  # by how much the backlog rose above that before these entries
    first_at=_TIME,
    last_at=_TIME,
    newest_id=_TEXT,
    **{f"{name}_sketch": pa.binary() for name in SPREADS},  # KLL, of microseconds; of a tenant only two
    messages_sketch=pa.binary(),  # HLL, of ids
    tenants_sketch=pa.binary(),
)
INCIDENT = _schema(
    at=_TIME,
    kind=_TEXT,  # missing, repeated, violation, unseen, lost, purged, retention or acknowledged
    messages=_COUNT,  # or entries
    journal=_TEXT,
    first_serial=_COUNT,
    after_at=_TIME,
    before_at=_TIME,
    state=_TEXT,
    tenant=_TEXT,
    ids=pa.list_(_TEXT),  # some of them
    reason=_TEXT,
    refresh=_COUNT,
)
_REFRESH = _schema(refresh=_COUNT, journal=_TEXT, serial=_COUNT, through=_TEXT)
_BYTES_A_FILE = 64_000_000  # before compression


@dataclass(frozen=True)
class Lake:
    """The tables of one queue at a location."""

    location: Location
    queue: str

    @property
    def messages(self) -> ArchiveTable:
        return ArchiveTable(self.location, "messages", MESSAGE, ("id", "published_at", "finished_at"))

    @property
    def open_messages(self) -> ArchiveTable:
        return ArchiveTable(self.location, "open_messages", MESSAGE, ("id", "published_at"))

    @property
    def minutes(self) -> ArchiveTable:
        return ArchiveTable(self.location, "minutes", COUNTS, ("start",))

    @property
    def hours(self) -> ArchiveTable:
        return ArchiveTable(self.location, "hours", COUNTS, ("start",))

    @property
    def incidents(self) -> ArchiveTable:
        return ArchiveTable(self.location, "incidents", INCIDENT)

    @property
    def refreshes(self) -> ArchiveTable:
        return ArchiveTable(self.location, "refreshes", _REFRESH)

    @property
    def with_history(self) -> tuple[ArchiveTable, ...]:
        """The tables whose rows are deleted when they are older than you want to keep."""
        return self.messages, self.minutes, self.hours

    @property
    def current(self) -> tuple[ArchiveTable, ...]:
        """The tables without old rows, and the incidents, which no retention deletes."""
        return self.open_messages, self.incidents, self.refreshes

    def version(self, table: ArchiveTable) -> int:
        """Return the number of the last refresh that a table has."""
        found = table.open()
        return (found and found.transaction_version(self._application(table))) or 0

    def commit(self, table: ArchiveTable, files: Sequence[DataFile], number: int, *, replace: bool = False) -> None:
        """Add the rows of a refresh to a table, unless it has them."""
        known = self.version(table)
        if known >= number:
            return
        try:
            table.commit(files, self.queue, self._application(table), known or None, number, replace=replace)
        except ArchiveConflictError:
            if self.version(table) < number:  # else another run has done the same
                raise

    def _application(self, table: ArchiveTable) -> str:
        return f"redis-exact-queue/{table.name}/{self.queue}"

    def add_incidents(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add incidents that no refresh has found: what operators do to the archive."""
        application = f"redis-exact-queue/operators/{self.queue}"
        known = self.incidents.open_or_create().transaction_version(application)
        files = self.write_rows(self.incidents, datetime.now(UTC).date().isoformat(), rows)
        self.incidents.commit(files, self.queue, application, known, (known or 0) + 1)

    def rows(self, table: ArchiveTable) -> list[dict[str, Any]]:
        """Return all rows of a small table."""
        found: list[dict[str, Any]] = table.read_locally(
            self.queue, table.file_schema.names, lambda _: True
        ).to_pylist()
        return found

    def read_messages(self, spark: "SparkSession", columns: Collection[str] | None = None) -> "DataFrame":
        """Return the messages that have ended, and those that have not."""
        ended = self.messages.read(spark, self.queue, columns)
        still = self.open_messages.read(spark, self.queue, columns)
        if self.version(self.messages) != self.version(self.open_messages):  # a refresh is under way, or has died
            still = still.join(ended.select("id"), "id", "left_anti")
        return ended.unionByName(still)

    def write_rows(self, table: ArchiveTable, date: str, rows: Sequence[Mapping[str, Any]]) -> list[DataFile]:
        """Write a few rows into a file that is not committed."""
        batches = [pa.RecordBatch.from_pylist(list(rows), table.file_schema)] if rows else []
        written = table.write_file(self.queue, date, batches)
        return [] if written is None else [written]

    def write(self, table: ArchiveTable, frame: "DataFrame") -> list[DataFile]:
        """Write a DataFrame with a column `date` in tasks, into files that are not committed."""
        queue = self.queue

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            files = [one.to_json() for one in _write_dates(table, queue, batches)]
            yield pa.RecordBatch.from_pydict({"file": pa.array(files, pa.string())})

        columns = frame.select("date", *table.file_schema.names)
        return [DataFile.from_json(row.file) for row in columns.mapInArrow(work, "file string").collect()]


def _write_dates(table: ArchiveTable, queue: str, batches: Iterator[pa.RecordBatch]) -> Iterator[DataFile]:
    """Write the rows of each date into files of their own."""
    waiting: dict[str, list[pa.Table]] = {}
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        for date in rows.column("date").unique().to_pylist():
            of_date = rows.filter(pa.compute.equal(rows.column("date"), date)).select(table.file_schema.names)
            waiting.setdefault(date, []).append(of_date.cast(table.file_schema))
            if sum(one.nbytes for one in waiting[date]) >= _BYTES_A_FILE:
                yield from _write_tables(table, queue, date, waiting.pop(date))
    for date, tables in waiting.items():
        yield from _write_tables(table, queue, date, tables)


def _write_tables(table: ArchiveTable, queue: str, date: str, tables: Sequence[pa.Table]) -> Iterator[DataFile]:
    written = table.write_file(queue, date, pa.concat_tables(tables).combine_chunks().to_batches())
    if written is not None:
        yield written


def read_messages(
    spark: "SparkSession", path: str, queue: str, storage_options: Mapping[str, str] | None = None
) -> "DataFrame":
    """Return a row for each message of a queue, of those that have ended and of those that have not.

    The rows are those of the last refresh. `refresh` brings them up to the archived journal.

    Raises:
        ArchiveError: Files of the tables are missing or were changed.
    """
    return Lake(location_of(path, storage_options, spark), queue).read_messages(spark)
