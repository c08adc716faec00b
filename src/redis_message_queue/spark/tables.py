"""The tables of a queue: the columns of each, how it is split for tasks, and how a slice of it is read."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import datasource as spark
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from redis_message_queue.protocol.operate.record_pairs import RecordPair, pair, record_of
from redis_message_queue.protocol.port import Argument
from redis_message_queue.spark import journal
from redis_message_queue.spark.connection import WHOLE, Partition, RedisReader
from redis_message_queue.spark.consumer_group import BatchSize, split_members
from redis_message_queue.spark.options import TableOptions, split_names
from redis_message_queue.spark.rows import message_columns, messages_schema, parse_stored, payload_type
from redis_message_queue.spark.time_options import microseconds
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.stored.envelope import HAS_ENTRY, ID_BYTES, TOKEN_BYTES
from redis_message_queue.stored.keys import QueueKeys

# The microseconds of the years 1 and 9999, between which a time can be shown.
_FIRST_TIME, _LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999
ROWS_A_TASK = 10_000  # unless minPartitions asks for more tasks

ColumnValues = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class TableSlice(spark.InputPartition):
    """What one task reads: pieces of the table, as the table divides itself, all of one partition of the queue."""

    pieces: tuple[tuple[Any, ...], ...]
    partition: Partition = WHOLE


class QueueTable(ABC):
    """A kind of table: its columns, how it is split, and how a slice of it is read."""

    def __init__(self, options: TableOptions) -> None:
        self.options = options

    @property
    @abstractmethod
    def schema(self) -> t.StructType:
        """The columns of the table, without the partition of a row."""

    @abstractmethod
    def slices(self, reader: RedisReader) -> list[TableSlice]:
        """Split what one partition of the queue has for tasks. An empty table has no slices."""

    @abstractmethod
    def read(self, reader: RedisReader, wanted: TableSlice) -> Iterator[ColumnValues]:
        """Return the rows of a slice, page by page."""

    def _rows_a_slice(self, rows: int) -> int:
        least = self.options.min_partitions
        return max(1, min(ROWS_A_TASK, math.ceil(rows / least))) if least else ROWS_A_TASK

    def _delivery_counts(self, reader: RedisReader, stored: Sequence[bytes], usual: int) -> list[int]:
        """Return how often each message was delivered. Most have the usual count, and a flag that says so."""
        noted = [parse_stored(one)[0] for one in stored if one and one[0] & HAS_ENTRY]
        ids = [one for one in noted if one is not None]
        (entries,) = reader.read(("HMGET", reader.keys.deliveries, *ids)) if ids else ([],)
        found = {one: _delivery_count(entry) for one, entry in zip(ids, entries, strict=True)}
        counts = {one: count for one, count in found.items() if count is not None}
        return [counts.get(one[1 : 1 + ID_BYTES], usual) for one in stored]


class PendingTable(QueueTable):
    """The pending messages: those without a tenant, and the queues of the tenants."""

    @property
    def schema(self) -> t.StructType:
        return messages_schema(self.options.payload_format)

    def slices(self, reader: RedisReader) -> list[TableSlice]:
        lengths = list(self._lengths(reader))
        size = self._rows_a_slice(sum(length for _, length in lengths))
        slices: list[TableSlice] = []
        pieces: list[tuple[Any, ...]] = []
        room = size
        for tenant, length in lengths:
            start = 0
            while start < length:
                stop = min(length, start + room)
                pieces.append((tenant, start, stop))
                start, room = stop, room - (stop - start)
                if not room:
                    slices.append(TableSlice(tuple(pieces)))
                    pieces, room = [], size
        return [*slices, TableSlice(tuple(pieces))] if pieces else slices

    def _lengths(self, reader: RedisReader) -> Iterator[tuple[str, int]]:
        wanted = self.options.tenants
        names = ["", *self._tenants(reader)] if wanted is None else split_names(wanted)
        for at in range(0, len(names), MAX_MESSAGES):
            some = names[at : at + MAX_MESSAGES]
            yield from zip(some, reader.read(*(("LLEN", _tenant_key(reader.keys, name)) for name in some)), strict=True)

    def _tenants(self, reader: RedisReader) -> list[str]:
        """Return the tenants that have work now."""
        names: dict[str, None] = {}
        cursor: bytes = b"0"
        while True:
            ((cursor, page),) = reader.read(("ZSCAN", reader.keys.tenant_ring, cursor, "COUNT", MAX_MESSAGES))
            names.update((name.decode("utf-8", "surrogateescape"), None) for name in page[::2] if name)
            if cursor == b"0":
                return list(names)

    def read(self, reader: RedisReader, wanted: TableSlice) -> Iterator[ColumnValues]:
        """Return the messages of each tenant in the order of their delivery."""
        pages = [(tenant, *page) for tenant, start, stop in wanted.pieces for page in _pages(start, stop)]
        for some in _grouped(pages, lambda page: page[2] - page[1]):
            keys = [_tenant_key(reader.keys, tenant) for tenant, _, _ in some]
            wanted_pages = zip(keys, some, strict=True)
            answers = reader.read(*(_from_the_right(key, at, end) for key, (_, at, end) in wanted_pages))
            stored = [one for answer in answers for one in reversed(answer)]
            yield message_columns(stored, self._delivery_counts(reader, stored, 0), self.options.queue)


class ProcessingTable(QueueTable):
    """The messages in flight. One task reads them all, because a scan of a hash cannot start in the middle."""

    @property
    def schema(self) -> t.StructType:
        return messages_schema(self.options.payload_format).add("lease_until", t.TimestampType())

    def slices(self, reader: RedisReader) -> list[TableSlice]:
        return [TableSlice(((),))]

    def read(self, reader: RedisReader, wanted: TableSlice) -> Iterator[ColumnValues]:
        seen: set[bytes] = set()  # a scan may return a message twice
        deadlines = self._deadlines(reader)
        cursor: bytes = b"0"
        while True:
            ((cursor, page),) = reader.read(("HSCAN", reader.keys.processing, cursor, "COUNT", MAX_MESSAGES))
            fresh = {one: stored for one, stored in zip(page[::2], page[1::2], strict=True) if one not in seen}
            seen.update(fresh)
            if fresh:
                yield self._page(reader, fresh, deadlines)
            if cursor == b"0":
                return

    def _deadlines(self, reader: RedisReader) -> dict[bytes, int]:
        """Return when the lease of each message ends, by its id."""
        found: dict[bytes, int] = {}
        first, page = 0, [b""]
        while page:
            (page,) = reader.read(("ZRANGE", reader.keys.leases, first, first + MAX_MESSAGES - 1, "WITHSCORES"))
            scored = ((token, score) for token, score in _scored(page) if len(token) == TOKEN_BYTES)
            found.update({token[:ID_BYTES]: _whole(score) for token, score in scored})
            first += MAX_MESSAGES
        return found

    def _page(self, reader: RedisReader, found: dict[bytes, bytes], deadlines: dict[bytes, int]) -> ColumnValues:
        stored = list(found.values())
        counts = self._delivery_counts(reader, stored, 1)
        return [*message_columns(stored, counts, self.options.queue), [deadlines.get(one) for one in found]]


class DelayedTable(QueueTable):
    """The delayed messages, in the order of their due times."""

    @property
    def schema(self) -> t.StructType:
        return messages_schema(self.options.payload_format).add("due_at", t.TimestampType())

    def slices(self, reader: RedisReader) -> list[TableSlice]:
        """Split into ranges of due times with about the same number of messages."""
        key, until = reader.keys.delayed, self.options.due_until
        top = "+inf" if until is None else f"({microseconds(until)}"
        (rows,) = reader.read(("ZCOUNT", key, "-inf", top))
        size = self._rows_a_slice(rows)
        found = reader.read(*(("ZRANGE", key, rank, rank, "WITHSCORES") for rank in range(size, rows, size)))
        edges = sorted({_whole(score) for one in found for _, score in _scored(one)})
        lows, highs = ["-inf", *map(str, edges)], [*(f"({edge}" for edge in edges), top]
        return [TableSlice((piece,)) for piece in zip(lows, highs, strict=True)] if rows else []

    def read(self, reader: RedisReader, wanted: TableSlice) -> Iterator[ColumnValues]:
        ((low, high),) = wanted.pieces
        seen = 0  # how many messages with the due time at which the next page starts
        while True:
            (found,) = reader.read(
                ("ZRANGEBYSCORE", reader.keys.delayed, low, high, "WITHSCORES", "LIMIT", seen, MAX_MESSAGES)
            )
            due = _scored(found)
            if due:
                yield self._page(reader, due)
            if len(due) < MAX_MESSAGES:
                return
            last = due[-1][1]
            seen = sum(score == last for _, score in due) + (seen if float(low) == last else 0)
            low = f"{last:.0f}"

    def _page(self, reader: RedisReader, due: list[tuple[bytes, float]]) -> ColumnValues:
        (bodies,) = reader.read(("HMGET", reader.keys.delayed_messages, *(one for one, _ in due)))
        there = [(stored, _whole(at)) for stored, (_, at) in zip(bodies, due, strict=True) if stored is not None]
        stored = [one for one, _ in there]
        counts = self._delivery_counts(reader, stored, 0)
        return [*message_columns(stored, counts, self.options.queue), [at for _, at in there]]


class ClaimedTable(QueueTable):
    """The messages that streaming queries have claimed and not acked, batch by batch."""

    @property
    def schema(self) -> t.StructType:
        return (
            messages_schema(self.options.payload_format)
            .add("consumer_group", t.StringType())
            .add("batch", t.LongType())
            .add("sealed", t.BooleanType())
        )

    def slices(self, reader: RedisReader) -> list[TableSlice]:
        batches = [one for group in self._groups(reader) for one in self._batches(reader, group)]
        size = self._rows_a_slice(sum(length for *_, length in batches))
        pieces = ((*where, *page) for *where, length in batches for page in _pages(0, length, size))
        return [TableSlice((piece,)) for piece in pieces]

    def _groups(self, reader: RedisReader) -> list[str]:
        if self.options.consumer_group is not None:
            return [self.options.consumer_group]
        (names,) = reader.read(("HKEYS", reader.keys.groups))
        return sorted(name.decode("utf-8", "replace") for name in names if name)  # '' has the sum of all groups

    def _batches(self, reader: RedisReader, group: str) -> Iterator[tuple[str, int, bool, int, int]]:
        """Return the batches of a group: whether each is sealed, how much of it to read at once, and its length."""
        (found,) = reader.read(("HGETALL", reader.keys.group(group)))
        fields = found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
        acked, sealed = (BatchSize.read(fields.get(name)).messages for name in (b"acked", b"sealed"))
        for number in sorted(int(name) for name in fields if name.isdigit() and int(name) > acked):
            batch = BatchSize.read(fields[b"%d" % number])
            yield group, number, number <= sealed, batch.page, batch.places

    def read(self, reader: RedisReader, wanted: TableSlice) -> Iterator[ColumnValues]:
        ((group, number, is_sealed, size, start, stop),) = wanted.pieces
        for at, end in _pages(start, stop, size):
            (members,) = reader.read(("LRANGE", reader.keys.members(group, number), at, end - 1))
            stored, counts = split_members(members)
            rest = ([value] * len(stored) for value in (group, number, is_sealed))
            yield [*message_columns(stored, counts, self.options.queue), *rest]


class ListTable(QueueTable):
    """The messages that have left the queue: payloads, and the record of each."""

    @property
    def schema(self) -> t.StructType:
        return _with_outcome(messages_schema(self.options.payload_format))

    def slices(self, reader: RedisReader) -> list[TableSlice]:
        payloads, records = reader.read_atomically(*(("LLEN", key) for key in _lists(reader.keys, self.options.table)))
        # Lists of different lengths were changed by hand. Records are then matched from the end, by one task.
        size = self._rows_a_slice(payloads) if payloads == records else max(1, payloads)
        return [TableSlice((piece,)) for piece in _pages(0, payloads, size)]

    def read(self, reader: RedisReader, wanted: TableSlice) -> Iterator[ColumnValues]:
        """Return the oldest messages first: indexes from that end do not change when messages are added."""
        letters, notes = _lists(reader.keys, self.options.table)
        ((start, stop),) = wanted.pieces
        read = start
        for at, end in _pages(start, stop):
            payloads, some = reader.read_atomically(
                _from_the_right(letters, at, end), _from_the_right(notes, read, read + end - at)
            )
            entries = [one for one in pair(payloads[::-1], some[::-1], whole=False) if one.payload is not None]
            read += 1 + max((one.record_place for one in entries), default=-1)
            yield _record_columns(self.schema, self.options.queue, entries)


class RecordsTable(QueueTable):
    """The records of one list of settled messages, without payloads."""

    @property
    def schema(self) -> t.StructType:
        return records_schema()

    def slices(self, reader: RedisReader) -> list[TableSlice]:
        (rows,) = reader.read(("LLEN", _lists(reader.keys, self.options.records_of)[1]))
        return [TableSlice((piece,)) for piece in _pages(0, rows, self._rows_a_slice(rows))]

    def read(self, reader: RedisReader, wanted: TableSlice) -> Iterator[ColumnValues]:
        ((start, stop),) = wanted.pieces
        records = _lists(reader.keys, self.options.records_of)[1]
        for at, end in _pages(start, stop):
            (notes,) = reader.read(_from_the_right(records, at, end))
            # Without payloads no record is matched. Values that are not records are left out.
            entries = [one for one in pair([], notes[::-1], whole=True) if one.record is not None]
            yield _record_columns(self.schema, self.options.queue, entries)


class JournalTable(QueueTable):
    """Every state change, as the scripts recorded it. An entry never moves, so this table is exact."""

    @property
    def schema(self) -> t.StructType:
        """The columns of the archive, and `queue`."""
        schema = from_arrow_schema(journal.SCHEMA)
        schema["payload"].dataType = payload_type(self.options.payload_format)
        return schema.add("queue", t.StringType())

    def slices(self, reader: RedisReader) -> list[TableSlice]:
        """Split into ranges of stream ids, which start with the milliseconds of their entry.

        An id is never earlier than the time of its entry, and later only after a clock went back. So reading can
        start at `since`, and cannot end at `until`.
        """
        key, since = reader.keys.journal, self.options.since
        least = "-" if since is None else str(max(0, microseconds(since) // 1_000))
        head, tail, length = reader.read(
            ("XRANGE", key, least, "+", "COUNT", 1),
            ("XREVRANGE", key, "+", least, "COUNT", 1),
            ("XLEN", key),
        )
        if not head or not tail:
            return []
        first, last = _milliseconds(head[0][0]), _milliseconds(tail[0][0])
        step = max(1, math.ceil((last + 1 - first) * self._rows_a_slice(length) / length))
        starts = range(first, last + 1, step)
        # An id without its second half means the first of its millisecond at a start and the last at an end.
        ends = [*(str(start - 1) for start in starts[1:]), tail[0][0].decode()]
        return [TableSlice(((str(start), end),)) for start, end in zip(starts, ends, strict=True)]

    def read(self, reader: RedisReader, wanted: TableSlice) -> Iterator[ColumnValues]:
        ((start, end),) = wanted.pieces
        since, until = self.options.since, self.options.until
        first, last = microseconds(since) if since else _FIRST_TIME, microseconds(until) if until else _LAST_TIME + 1
        for page in journal.pages(reader, reader.keys.journal, start, end, MAX_MESSAGES):
            decoded = (journal.decode(stream_id, fields, int) for stream_id, fields in page)
            rows = [row for row in decoded if since is until is None or first <= (row["at"] or last) < last]
            yield [*([row[name] for row in rows] for name in journal.SCHEMA.names), [self.options.queue] * len(rows)]


TABLES: dict[str, type[QueueTable]] = {
    "pending": PendingTable,
    "processing": ProcessingTable,
    "delayed": DelayedTable,
    "claimed": ClaimedTable,
    "completed": ListTable,
    "failed": ListTable,
    "dead_letters": ListTable,
    "records": RecordsTable,
    "journal": JournalTable,
}


def records_schema() -> t.StructType:
    """Return the columns of the table `records`."""
    of_messages = t.StructType([one for one in messages_schema() if one.name != "payload"])
    return _with_outcome(of_messages).add("payload_bytes", t.LongType()).add("payload_sha1", t.StringType())


def table_schema(options: TableOptions) -> t.StructType:
    """Return the columns of the table that is asked for."""
    return _with_partition(TABLES[options.table](options).schema)


def _with_partition(schema: t.StructType) -> t.StructType:
    """Add the number of the partition that a row is from: 0 in a queue without partitions."""
    return schema.add("partition", t.IntegerType())


# Shared by the tables


def _with_outcome(schema: t.StructType) -> t.StructType:
    """Add the columns of a record."""
    schema.add("claimed_at", t.TimestampType()).add("finished_at", t.TimestampType())
    for name in ("reason", "error_type", "error", "traceback", "replay_of"):
        schema.add(name, t.StringType())
    return schema


def _lists(keys: QueueKeys, name: str) -> tuple[str, str]:
    """Return the keys of a list of payloads and of the records beside it."""
    key = {"completed": keys.completed, "failed": keys.failed, "dead_letters": keys.dead_letter}[name]
    return key, keys.records(key)


def _tenant_key(keys: QueueKeys, tenant: str) -> bytes:
    """Return the key of a tenant's queue. The name of the tenant need not be UTF-8."""
    key = keys.tenant_pending("").encode() + tenant.encode("utf-8", "surrogateescape")
    return key if tenant else keys.pending.encode()


def _record_columns(schema: t.StructType, queue: str, entries: Sequence[RecordPair]) -> ColumnValues:
    records = [record_of(one, decode=False) for one in entries]
    special: dict[str, list[Any]] = {
        "queue": [queue] * len(entries),
        "payload": [one.payload for one in entries],
        "payload_bytes": [(one.record or {}).get("bytes") for one in entries],
        "payload_sha1": [(one.record or {}).get("sha1") for one in entries],
    }
    return [
        [
            _typed(value, one.dataType)
            for value in special.get(one.name) or (getattr(each, one.name) for each in records)
        ]
        for one in schema
    ]


def _typed(value: Any, kind: t.DataType) -> Any:
    """Return None for a value of the wrong type: somebody else may have written the record."""
    if isinstance(kind, t.LongType):
        return value if type(value) is int else None
    return value if not isinstance(kind, t.StringType) or isinstance(value, str | bytes) else None


def _pages(start: int, stop: int, size: int = MAX_MESSAGES) -> list[tuple[int, int]]:
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]


def _grouped(pages: Iterable[Any], rows: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Put small pages together, until they have about as many rows as one large page."""
    some: list[Any] = []
    for page in pages:
        some.append(page)
        if sum(map(rows, some)) >= MAX_MESSAGES:
            yield some
            some = []
    if some:
        yield some


def _from_the_right(key: str | bytes, start: int, stop: int) -> tuple[Argument, ...]:
    """Return the command that reads list elements by index from the end. The reply has the order of the list."""
    return ("LRANGE", key, -stop, -start - 1)


def _whole(score: float) -> int:
    """Return a time in microseconds; a damaged one is the first or the last that a column can hold."""
    return int(max(_FIRST_TIME, min(score, _LAST_TIME)))


def _delivery_count(entry: bytes | None) -> int | None:
    """Return the second number of an entry of `deliveries`, None for what is no entry."""
    found = re.match(rb"\d{1,15}:(\d{1,15})(?::\d+)?$", entry or b"")
    return int(found[1]) if found else None


def _scored(found: Any) -> list[tuple[bytes, float]]:
    """Return members and scores. RESP3 sends pairs, RESP2 a flat list."""
    pairs = found if found and isinstance(found[0], list) else zip(found[::2], found[1::2], strict=True)
    return [(member, float(score)) for member, score in pairs]


def _milliseconds(stream_id: bytes) -> int:
    return int(stream_id.partition(b"-")[0])
