"""The batch reader: what a queue holds, as tables, read without touching it.

Others go on working meanwhile. A table of up to a thousand rows is read in one step. A larger one is read page by page
and by several tasks: a row is seen once unless it moved meanwhile, and then it may be missed or seen twice. What moves:
messages that are claimed, settled or become due; the places in a line behind a message that is claimed; the places in
a list that is cut to its limit. What does not: lists without a limit, delayed messages, and the journal.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from redis_message_queue.envelope import HAS_ENTRY, ID_BYTES, TOKEN_BYTES
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.protocol.port import Argument
from redis_message_queue.protocol.records import Entry, pair, record_of
from redis_message_queue.spark import journal
from redis_message_queue.spark.look import Look
from redis_message_queue.spark.options import TableOptions
from redis_message_queue.spark.rows import Columns, message_columns, messages_schema, open_stored, payload_type

PAGE = 1_000  # rows in one answer of the server
RANGE = 10_000  # rows of one task, where nobody asks for more tasks

Columned = Sequence[Sequence[Any]]


# Which rows are wanted


@dataclass(frozen=True)
class Bounds:
    """What a query's filters leave of a table, as far as reading less is possible. Times are microseconds."""

    tenants: frozenset[str] | None = None  # '' for messages without one; None for all
    since: int | None = None
    until: int | None = None

    def narrowed(self, one: spark.Filter, time: str | None) -> Bounds:
        """With one more filter; `time` is the column that the table is ordered by."""
        attribute = getattr(one, "attribute", None)
        if attribute == ("tenant",):
            names = _tenants_in(one)
            if names is not None:
                return replace(self, tenants=names if self.tenants is None else self.tenants & names)
        if time is not None and attribute == (time,):
            at = _microseconds(getattr(one, "value", None))
            if at is not None and isinstance(one, spark.GreaterThan | spark.GreaterThanOrEqual | spark.EqualTo):
                self = replace(self, since=at if self.since is None else max(self.since, at))
            if at is not None and isinstance(one, spark.LessThan | spark.LessThanOrEqual | spark.EqualTo):
                self = replace(self, until=at if self.until is None else min(self.until, at))
        return self


def _tenants_in(one: spark.Filter) -> frozenset[str] | None:
    """The tenants that a filter lets through, '' for none; None if it cannot be told."""
    if isinstance(one, spark.IsNull):
        return frozenset({""})
    if isinstance(one, spark.EqualTo | spark.EqualNullSafe):
        return frozenset({one.value or ""})
    return frozenset(value or "" for value in one.value) if isinstance(one, spark.In) else None


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime):
        return None
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000_000)


# The tables


@dataclass(frozen=True)
class TablePart(spark.InputPartition):
    """What one task reads: pieces of the table, in whatever way the table counts."""

    pieces: tuple[tuple[Any, ...], ...]


class QueueTable(ABC):
    """One kind of table of a queue: its columns, its parts, and the rows of a part."""

    time: ClassVar[str | None] = None  # the column by which it can be entered in the middle

    def __init__(self, options: TableOptions) -> None:
        self.options = options
        self.keys = options.keys

    @property
    @abstractmethod
    def schema(self) -> t.StructType:
        """Its columns, as Spark names them."""

    @abstractmethod
    def parts(self, look: Look, bounds: Bounds) -> list[TablePart]:
        """How the table is shared out among tasks; none for an empty table."""

    @abstractmethod
    def columns(self, look: Look, part: TablePart) -> Iterator[Columned]:
        """The rows of a part, page by page."""

    def _rows_a_part(self, rows: int) -> int:
        """Tasks of RANGE rows, or smaller ones if more tasks are wanted."""
        wanted = self.options.min_partitions
        return max(1, min(RANGE, math.ceil(rows / wanted))) if wanted else RANGE

    def _delivery_counts(self, look: Look, stored: Sequence[bytes], usual: int) -> list[int]:
        """How often each was delivered; most have no entry, and their flag says so."""
        noted = [open_stored(one)[0] for one in stored if one and one[0] & HAS_ENTRY]
        ids = [one for one in noted if one is not None]
        (entries,) = look.ask(("HMGET", self.keys.deliveries, *ids)) if ids else ([],)
        counts = {one: int(entry.split(b":")[1]) for one, entry in zip(ids, entries, strict=True) if entry}
        return [counts.get(one[1 : 1 + ID_BYTES], usual) for one in stored]


class PendingTable(QueueTable):
    """The messages that wait: those without a tenant, and the lines of the tenants."""

    @property
    def schema(self) -> t.StructType:
        return messages_schema(self.options.payload_format)

    def parts(self, look: Look, bounds: Bounds) -> list[TablePart]:
        lengths = list(self._lengths(look, bounds))
        size = self._rows_a_part(sum(length for _, length in lengths))
        parts: list[TablePart] = []
        pieces: list[tuple[Any, ...]] = []
        room = size
        for tenant, length in lengths:
            start = 0
            while start < length:
                stop = min(length, start + room)
                pieces.append((tenant, start, stop))
                start, room = stop, room - (stop - start)
                if not room:
                    parts.append(TablePart(tuple(pieces)))
                    pieces, room = [], size
        return [*parts, TablePart(tuple(pieces))] if pieces else parts

    def _lengths(self, look: Look, bounds: Bounds) -> Iterator[tuple[str, int]]:
        names = sorted(bounds.tenants) if bounds.tenants is not None else ["", *self._tenants(look)]
        for at in range(0, len(names), PAGE):
            some = names[at : at + PAGE]
            yield from zip(some, look.ask(*(("LLEN", self._line(name)) for name in some)), strict=True)

    def _tenants(self, look: Look) -> list[str]:
        """Everybody who has work now."""
        names: dict[str, None] = {}
        cursor: bytes = b"0"
        while True:
            ((cursor, page),) = look.ask(("ZSCAN", self.keys.tenants, cursor, "COUNT", PAGE))
            names.update((name.decode("utf-8", "surrogateescape"), None) for name in page[::2] if name)
            if cursor == b"0":
                return list(names)

    def _line(self, tenant: str) -> bytes:
        """Its name need not be UTF-8."""
        key = self.keys.line("").encode() + tenant.encode("utf-8", "surrogateescape")
        return key if tenant else self.keys.pending.encode()

    def columns(self, look: Look, part: TablePart) -> Iterator[Columned]:
        """The next to be delivered first, in each line."""
        pages = [(tenant, *page) for tenant, start, stop in part.pieces for page in _pages(start, stop)]
        for some in _filled(pages, lambda page: page[2] - page[1]):
            answers = look.ask(*(_from_the_right(self._line(tenant), at, end) for tenant, at, end in some))
            stored = [one for answer in answers for one in reversed(answer)]
            yield message_columns(stored, self._delivery_counts(look, stored, 0), self.options.queue)


class ProcessingTable(QueueTable):
    """The messages in flight. A hash cannot be entered in the middle, so one task reads it."""

    @property
    def schema(self) -> t.StructType:
        return messages_schema(self.options.payload_format).add("lease_until", t.TimestampType())

    def parts(self, look: Look, bounds: Bounds) -> list[TablePart]:
        return [TablePart(((),))]

    def columns(self, look: Look, part: TablePart) -> Iterator[Columned]:
        seen: set[bytes] = set()  # a scan may show an entry twice
        deadlines = self._deadlines(look)
        cursor: bytes = b"0"
        while True:
            ((cursor, page),) = look.ask(("HSCAN", self.keys.processing, cursor, "COUNT", PAGE))
            fresh = {one: stored for one, stored in zip(page[::2], page[1::2], strict=True) if one not in seen}
            seen.update(fresh)
            if fresh:
                yield self._page(look, fresh, deadlines)
            if cursor == b"0":
                return

    def _deadlines(self, look: Look) -> dict[bytes, int]:
        """When the lease of each message ends, by its id."""
        found: dict[bytes, int] = {}
        first, page = 0, [b""]
        while page:
            (page,) = look.ask(("ZRANGE", self.keys.leases, first, first + PAGE - 1, "WITHSCORES"))
            scored = ((token, score) for token, score in _scored(page) if len(token) == TOKEN_BYTES)
            found.update({token[:ID_BYTES]: int(score) for token, score in scored})
            first += PAGE
        return found

    def _page(self, look: Look, found: dict[bytes, bytes], deadlines: dict[bytes, int]) -> Columned:
        stored = list(found.values())
        counts = self._delivery_counts(look, stored, 1)
        return [*message_columns(stored, counts, self.options.queue), [deadlines.get(one) for one in found]]


class DelayedTable(QueueTable):
    """The messages that wait for their time, by that time."""

    time = "due_at"

    @property
    def schema(self) -> t.StructType:
        return messages_schema(self.options.payload_format).add("due_at", t.TimestampType())

    def parts(self, look: Look, bounds: Bounds) -> list[TablePart]:
        """Ranges of due times, with about as many messages in each."""
        key, low, high = self.keys.delayed, bounds.since or 0, bounds.until
        top = "+inf" if high is None else str(high)
        first, rows = look.ask(("ZCOUNT", key, "-inf", f"({low}"), ("ZCOUNT", key, low, top))
        size = self._rows_a_part(rows)
        ranks = range(first + size, first + rows, size)
        found = look.ask(*(("ZRANGE", key, rank, rank, "WITHSCORES") for rank in ranks))
        edges = sorted({int(score) for one in found for _, score in _scored(one)})
        lows, highs = [str(low), *map(str, edges)], [*(f"({edge}" for edge in edges), top]
        return [TablePart((piece,)) for piece in zip(lows, highs, strict=True)] if rows else []

    def columns(self, look: Look, part: TablePart) -> Iterator[Columned]:
        ((low, high),) = part.pieces
        met = 0  # of those with the due time at which the next page begins
        while True:
            (found,) = look.ask(("ZRANGEBYSCORE", self.keys.delayed, low, high, "WITHSCORES", "LIMIT", met, PAGE))
            due = _scored(found)
            if due:
                yield self._page(look, due)
            if len(due) < PAGE:
                return
            last = due[-1][1]
            met = sum(score == last for _, score in due) + (met if float(low) == last else 0)
            low = f"{last:.0f}"

    def _page(self, look: Look, due: list[tuple[bytes, float]]) -> Columned:
        (bodies,) = look.ask(("HMGET", self.keys.later, *(one for one, _ in due)))
        there = [(stored, int(at)) for stored, (_, at) in zip(bodies, due, strict=True) if stored is not None]
        stored = [one for one, _ in there]
        counts = self._delivery_counts(look, stored, 0)
        return [*message_columns(stored, counts, self.options.queue), [at for _, at in there]]


class ListTable(QueueTable):
    """What has left: payloads, and beside each the record of what became of it."""

    @property
    def schema(self) -> t.StructType:
        return _with_outcome(messages_schema(self.options.payload_format))

    @property
    def _lists(self) -> tuple[str, str]:
        return _lists(self.keys, self.options.table)

    def parts(self, look: Look, bounds: Bounds) -> list[TablePart]:
        payloads, records = look.ask_at_once(*(("LLEN", key) for key in self._lists))
        # Where one is longer, somebody has cut or filled it by hand: what belongs together is found from the end on.
        size = self._rows_a_part(payloads) if payloads == records else max(1, payloads)
        return [TablePart((piece,)) for piece in _pages(0, payloads, size)]

    def columns(self, look: Look, part: TablePart) -> Iterator[Columned]:
        """The oldest first: places are counted from that end, which new ones do not move."""
        letters, notes = self._lists
        ((start, stop),) = part.pieces
        read = start
        for at, end in _pages(start, stop):
            payloads, some = look.ask_at_once(
                _from_the_right(letters, at, end), _from_the_right(notes, read, read + end - at)
            )
            entries = [one for one in pair(payloads[::-1], some[::-1], whole=False) if one.payload is not None]
            read += 1 + max((one.note_place for one in entries), default=-1)
            yield _record_columns(self.schema, self.options.queue, entries)


class RecordsTable(QueueTable):
    """The records alone, without payloads: of what has left into one of the lists."""

    @property
    def schema(self) -> t.StructType:
        of_messages = t.StructType([one for one in messages_schema() if one.name != "payload"])
        return _with_outcome(of_messages).add("payload_bytes", t.LongType()).add("payload_sha1", t.StringType())

    @property
    def _records(self) -> str:
        return _lists(self.keys, self.options.source)[1]

    def parts(self, look: Look, bounds: Bounds) -> list[TablePart]:
        (rows,) = look.ask(("LLEN", self._records))
        return [TablePart((piece,)) for piece in _pages(0, rows, self._rows_a_part(rows))]

    def columns(self, look: Look, part: TablePart) -> Iterator[Columned]:
        ((start, stop),) = part.pieces
        for at, end in _pages(start, stop):
            (notes,) = look.ask(_from_the_right(self._records, at, end))
            # Without their payloads all of them stand alone; what is no record is left out.
            entries = [one for one in pair([], notes[::-1], whole=True) if one.note is not None]
            yield _record_columns(self.schema, self.options.queue, entries)


class JournalTable(QueueTable):
    """Every change of state, as the scripts wrote it down: an entry never moves, so this table is exact."""

    time = "at"

    @property
    def schema(self) -> t.StructType:
        """The columns of the archive, and the queue."""
        schema = from_arrow_schema(journal.SCHEMA)
        schema["payload"].dataType = payload_type(self.options.payload_format)
        return schema.add("queue", t.StringType())

    def parts(self, look: Look, bounds: Bounds) -> list[TablePart]:
        """Ranges of stream ids, which begin with the milliseconds of their entry.

        An id is never earlier than its entry's time, and later only after a clock went back: so `since` can be
        trusted, and `until` cannot.
        """
        key = self.keys.journal
        least = "-" if bounds.since is None else str(max(0, bounds.since // 1_000))
        head, tail, length = look.ask(
            ("XRANGE", key, least, "+", "COUNT", 1),
            ("XREVRANGE", key, "+", least, "COUNT", 1),
            ("XLEN", key),
        )
        if not head or not tail:
            return []
        first, last = _milliseconds(head[0][0]), _milliseconds(tail[0][0])
        step = max(1, math.ceil((last + 1 - first) * self._rows_a_part(length) / length))
        starts = range(first, last + 1, step)
        # An id without its second half means the first of its millisecond at a start, and the last at an end.
        ends = [*(str(start - 1) for start in starts[1:]), tail[0][0].decode()]
        return [TablePart(((str(start), end),)) for start, end in zip(starts, ends, strict=True)]

    def columns(self, look: Look, part: TablePart) -> Iterator[Columned]:
        ((start, end),) = part.pieces
        for page in journal.pages(look, self.keys.journal, start, end, PAGE):
            rows = [journal.decode(stream_id, fields, int) for stream_id, fields in page]
            yield [*([row[name] for row in rows] for name in journal.SCHEMA.names), [self.options.queue] * len(rows)]


TABLES: dict[str, type[QueueTable]] = {
    "pending": PendingTable,
    "processing": ProcessingTable,
    "delayed": DelayedTable,
    "completed": ListTable,
    "failed": ListTable,
    "dead_letters": ListTable,
    "records": RecordsTable,
    "journal": JournalTable,
}


def table_schema(options: TableOptions) -> t.StructType:
    """The columns of the table that is asked for."""
    return TABLES[options.table](options).schema


# What they share


def _with_outcome(schema: t.StructType) -> t.StructType:
    """With what a record knows of a message that has left."""
    schema.add("claimed_at", t.TimestampType()).add("finished_at", t.TimestampType())
    for name in ("reason", "error_type", "error", "replay_of"):
        schema.add(name, t.StringType())
    return schema


def _lists(keys: QueueKeys, name: str) -> tuple[str, str]:
    """The payloads that have left, and their records."""
    key = {"completed": keys.completed, "failed": keys.failed, "dead_letters": keys.dead_letter}[name]
    return key, keys.records(key)


def _record_columns(schema: t.StructType, queue: str, entries: Sequence[Entry]) -> Columned:
    said = [record_of(one, decode=False) for one in entries]
    special: dict[str, list[Any]] = {
        "queue": [queue] * len(entries),
        "payload": [one.payload for one in entries],
        "payload_bytes": [(one.note or {}).get("bytes") for one in entries],
        "payload_sha1": [(one.note or {}).get("sha1") for one in entries],
    }
    return [
        [_fitting(value, one.dataType) for value in special.get(one.name) or (getattr(each, one.name) for each in said)]
        for one in schema
    ]


def _fitting(value: Any, kind: t.DataType) -> Any:
    """None for what cannot be there: somebody else may have written a record."""
    if isinstance(kind, t.LongType):
        return value if type(value) is int else None
    return value if not isinstance(kind, t.StringType) or isinstance(value, str | bytes) else None


def _pages(start: int, stop: int, size: int = PAGE) -> list[tuple[int, int]]:
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]


def _filled(pages: Iterable[Any], rows: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Small pages together, until they are about as many rows as one large page."""
    some: list[Any] = []
    for page in pages:
        some.append(page)
        if sum(map(rows, some)) >= PAGE:
            yield some
            some = []
    if some:
        yield some


def _from_the_right(key: str | bytes, start: int, stop: int) -> tuple[Argument, ...]:
    """The elements of a list by their places from its end, the last one first; they come in the list's own order."""
    return ("LRANGE", key, -stop, -start - 1)


def _scored(found: Any) -> list[tuple[bytes, float]]:
    """Members with scores, in either protocol: RESP3 pairs them."""
    pairs = found if found and isinstance(found[0], list) else zip(found[::2], found[1::2], strict=True)
    return [(member, float(score)) for member, score in pairs]


def _milliseconds(stream_id: bytes) -> int:
    return int(stream_id.partition(b"-")[0])


# What Spark calls


class TableReader(spark.DataSourceReader):
    """`spark.read`: a table of a queue, and nothing of the queue is changed by it."""

    def __init__(self, options: TableOptions, schema: t.StructType) -> None:
        self._table = TABLES[options.table](options)
        self._columns = Columns(_checked(schema, self._table.schema, options.table))
        self._bounds = Bounds()
        self.pushFilters = _Push(self)  # type: ignore[method-assign]  # see there

    def narrow(self, filters: list[spark.Filter]) -> list[spark.Filter]:
        """Read less where a filter allows it. Spark still looks at every row: a bound may let some through."""
        for one in filters:
            self._bounds = self._bounds.narrowed(one, self._table.time)
        return filters

    def partitions(self) -> Sequence[spark.InputPartition]:
        with closing(self._table.options.connect()) as client:
            parts = self._table.parts(Look(client, self._table.keys), self._bounds)
        # Spark would take no partitions for one that has no name.
        return parts or [TablePart(())]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePart)
        if not partition.pieces:
            return
        with closing(self._table.options.connect()) as client:
            for columns in self._table.columns(Look(client, self._table.keys), partition):
                yield self._columns.of_columns(columns)


class _Push:
    """The reader's `pushFilters`, which looks inherited to Spark.

    In a session without spark.sql.python.filterPushdown.enabled Spark 4.3 refuses every read of a reader that has one
    of its own, and where the format was found by itself nobody has set that. This way such a session reads it all.
    """

    __func__ = staticmethod(spark.DataSourceReader.pushFilters)

    def __init__(self, reader: TableReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[spark.Filter]) -> list[spark.Filter]:
        return self._reader.narrow(filters)


def _checked(given: t.StructType, own: t.StructType, table: str) -> t.StructType:
    if [(one.name, one.dataType) for one in given] != [(one.name, one.dataType) for one in own]:
        raise ConfigurationError(
            f"the given schema is not that of the table {table}: {own.simpleString()}; leave it out, and parse "
            "payloads with from_json"
        )
    return own
