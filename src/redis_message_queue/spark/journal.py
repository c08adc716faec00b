"""Reads a queue's journal: the Redis stream in which its scripts record every state change."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from redis_message_queue.spark.connection import WHOLE, Partition, RedisReader, open_partitions
from redis_message_queue.spark.options import QueueAddress
from redis_message_queue.stored.bounds import MAX_BYTES, MAX_MESSAGES
from redis_message_queue.stored.keys import script_keys
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.errors import JournalError

BATCH_BYTES = 32_000_000  # in one Arrow batch
DAY_MS = 86_400_000
_GROWTH = 4  # of the entries in a page, at most, from one to the next
_LAST_SEQUENCE = 2**64 - 1

# The columns of an entry, and the field of the stream for each. A field that an entry does not have is null.
_FIELDS: tuple[tuple[str, str, pa.DataType], ...] = (
    ("n", "serial", pa.int64()),
    ("at", "at", pa.timestamp("us", tz="UTC")),
    ("event", "event", pa.string()),
    ("id", "id", pa.string()),
    ("tenant", "tenant", pa.string()),
    ("payload", "payload", pa.binary()),
    ("due", "due", pa.timestamp("us", tz="UTC")),
    ("count", "count", pa.int64()),
    ("failures", "failures", pa.int64()),
    ("error_type", "error_type", pa.string()),
    ("reason", "reason", pa.string()),
    ("replay_of", "replay_of", pa.string()),
    ("of", "of", pa.string()),
    ("results", "results", pa.int64()),
    ("target", "target", pa.string()),
    ("first", "first", pa.int64()),
    ("started", "started", pa.timestamp("us", tz="UTC")),
    ("handled", "handled", pa.int64()),
    ("headers", "headers", pa.map_(pa.string(), pa.string())),
    ("by", "by", pa.string()),
)
SCHEMA = pa.schema(
    [pa.field(column, kind) for _, column, kind in _FIELDS]
    # `more` keeps the fields that only a newer library knows.
    + [pa.field("more", pa.string()), pa.field("stream_id", pa.string())]
)


class StreamId(NamedTuple):
    """The id of a stream entry. Ids have the order of their entries."""

    ms: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> "StreamId":
        ms, _, sequence = text.partition("-")
        return cls(int(ms), int(sequence or 0))

    def __str__(self) -> str:
        return f"{self.ms}-{self.sequence}"

    def next(self) -> "StreamId":
        """Return the smallest id after this one."""
        return StreamId(self.ms, self.sequence + 1) if self.sequence < _LAST_SEQUENCE else StreamId(self.ms + 1, 0)

    @property
    def date(self) -> str:
        """The UTC date on which the server wrote the entry. Stream ids never go back, so dates do not either."""
        try:
            return datetime.fromtimestamp(self.ms / 1000, UTC).date().isoformat()
        except (ValueError, OverflowError):
            raise _foreign_entry(str(self).encode(), "an id that is no time of a server's clock") from None


BEGINNING = StreamId(0, 0)


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The entries from one stream id to another, both included."""

    first: StreamId
    last: StreamId


@dataclass(frozen=True, slots=True)
class JournalState:
    """The journal's part of the queue's state."""

    identity: str  # differs from that of every other journal, also of the same queue before its server was flushed
    has_payloads: bool
    serial: int
    mark: StreamId | None  # up to here the journal is archived and may be trimmed


@dataclass(frozen=True, slots=True)
class JournalSnapshot:
    """The last entry of the journal, and how many messages the queue had at that moment."""

    last: StreamId
    serial: int
    pending: int | None = None
    processing: int | None = None
    delayed: int | None = None


class JournalReader:
    """Reads the journal of one queue, or of one partition of it, through its own client."""

    def __init__(self, address: QueueAddress, partition: Partition = WHOLE) -> None:
        self.address = address
        self.partition = partition
        self._client = address.connect()
        self._reader = RedisReader(self._client, address.keys, partition)
        self._keys = self._reader.keys
        self.key, self.state_key = self._keys.journal, self._keys.meta

    def __enter__(self) -> "JournalReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    # -- state

    def state(self) -> JournalState:
        """Return the state of the journal.

        Raises:
            JournalError: The queue has no journal.
        """
        names = ("journal", "journal_identity", "journal_serial", "journal_mark")
        (found,) = self._reader.read(("HMGET", self.state_key, *names))
        payload, identity, serial, mark = found
        if payload is None:
            self._reader.refuse_cluster_node()
            raise JournalError(
                f"the queue {self.address.queue!r} has no journal. Open it once with journal=True, or with "
                'journal="payload" to keep payloads too.',
                queue=self.address.queue,
            )
        try:
            known = int(serial or 0), StreamId.parse(mark.decode()) if mark else None
        except ValueError:
            raise JournalError(
                f"{self.state_key!r} holds a foreign value in 'journal_serial' or 'journal_mark': "
                f"{(serial or b'')[:40]!r}, {(mark or b'')[:40]!r}. Remove the one that is not a number with HDEL.",
                queue=self.address.queue,
            ) from None
        return JournalState(
            identity=(identity or b"").decode("utf-8", "replace"),
            has_payloads=payload == b"1",
            serial=known[0],
            mark=known[1],
        )

    def set_mark(self, mark: StreamId) -> None:
        """Allow the journal to be trimmed up to here. Does not bring back a journal that was deleted meanwhile."""
        # The field `journal` switches the journal on. A mark without it has no effect, and is removed.
        set_mark = ("HSET", self.state_key, "journal_mark", str(mark))
        _, exists = self._reader.read_atomically(set_mark, ("HEXISTS", self.state_key, "journal"))
        if not exists:
            self._reader.read(("HDEL", self.state_key, "journal_mark"))

    def snapshot(self) -> JournalSnapshot | None:
        """Return the last entry and the depth of the queue, read atomically, or None if the journal is empty."""
        stats, keys = script("stats"), self._keys
        names = script_keys(keys, stats.keys)
        newest, counts = self._reader.read_atomically(
            ("XREVRANGE", self.key, "+", "-", "COUNT", 1),
            ("EVAL", stats.source, len(names), *names, keys.tenant_pending(""), "", ""),
        )
        if not newest:
            return None
        stream_id, serial = _id_and_serial(newest[0])
        pending, processing, delayed, *_ = counts
        return JournalSnapshot(stream_id, serial, pending, processing, delayed)

    def first_after(self, known: StreamId) -> tuple[StreamId, int] | None:
        """Return the id and serial of the first entry after ``known``, if there is one."""
        return self._first_from(known.next())

    def _first_from(self, start: StreamId) -> tuple[StreamId, int] | None:
        (found,) = self._reader.read(("XRANGE", self.key, str(start), "+", "COUNT", 1))
        return _id_and_serial(found[0]) if found else None

    # -- entries

    def batches(self, wanted: StreamRange, rows: int = 10_000) -> Iterator[pa.RecordBatch]:
        """Return the entries of a range as Arrow batches of the fixed schema.

        A batch ends before it has more than BATCH_BYTES, unless one entry alone has more.
        """
        waiting: list[RawEntry] = []
        size = 0
        for page in raw_pages(self._reader, self.key, str(wanted.first), str(wanted.last), MAX_MESSAGES):
            for entry in page:
                added = size_of(entry)
                if waiting and (len(waiting) == rows or size + added > BATCH_BYTES):
                    yield to_batch(waiting)
                    waiting, size = [], 0
                waiting.append(entry)
                size += added
        if waiting:
            yield to_batch(waiting)

    # -- ranges

    def days(self, wanted: StreamRange) -> list[StreamRange]:
        """Split a range at midnight, so that each part has one date. Days without an entry are left out."""
        parts: list[StreamRange] = []
        start: StreamId | None = wanted.first
        while start is not None and start <= wanted.last:
            end = min(wanted.last, StreamId((start.ms // DAY_MS + 1) * DAY_MS - 1, _LAST_SEQUENCE))
            parts.append(StreamRange(start, end))
            following = self.first_after(end)
            start = following[0] if following else None
        return parts

    def split(self, wanted: StreamRange, rows: int) -> list[StreamRange]:
        """Split a range into parts of about ``rows`` entries, for partitions.

        Each cut is found by bisection over time for a serial: some 40 reads per cut, instead of reading everything.
        Cuts lie between milliseconds, so that one burst stays whole.
        """
        first = self._first_from(wanted.first)
        if first is None or first[0] > wanted.last:
            return []
        parts: list[StreamRange] = []
        start, serial = first
        while True:
            cut = self._find_cut(start, wanted.last, serial + rows)
            if cut is None:
                return [*parts, StreamRange(start, wanted.last)]
            parts.append(StreamRange(start, StreamId(cut[0].ms - 1, _LAST_SEQUENCE)))
            start, serial = cut

    def _find_cut(self, start: StreamId, last: StreamId, serial: int) -> tuple[StreamId, int] | None:
        """Return the first entry of the first millisecond after ``start`` with this serial or a later one."""
        low, high = start.ms + 1, last.ms + 1
        while low < high:
            middle = (low + high) // 2
            found = self._first_from(StreamId(middle, 0))
            if found is None or found[1] >= serial:
                high = middle
            else:
                low = found[0].ms + 1
        found = self._first_from(StreamId(low, 0))
        return found if found is not None and found[0] <= last else None


def journals_of(address: QueueAddress) -> list[Partition]:
    """Return the partitions of a queue that have a journal, or the first if none has one.

    A partition has none before its first use.
    """
    with closing(address.connect()) as client:
        readers = open_partitions(client, address)
        found = [one.partition for one in readers if one.read(("HEXISTS", one.keys.meta, "journal"))[0]]
    return found or [readers[0].partition]


RawEntry = tuple[bytes, list[bytes]]
"""The id of an entry, and its fields as the server sends them: names and values in turn."""
StreamEntry = tuple[bytes, dict[bytes, bytes]]


def size_of(entry: RawEntry) -> int:
    """Return the bytes of an entry's fields."""
    return sum(map(len, entry[1]))


def raw_pages(reader: RedisReader, key: str, start: str, end: str, size: int) -> Iterator[list[RawEntry]]:
    """Return the entries of a stream from one id to another, both included.

    A page has at most ``size`` entries, and about MAX_BYTES. Redis can only limit the number of entries. So the first
    page has one entry, and each page has as many as fit if they are as large as the largest before. A large one is
    forgotten step by step, because entries with and without a payload alternate.
    """
    count, largest = 1, 1
    while True:
        (page,) = reader.read(("XRANGE", key, start, end, "COUNT", count))
        if page:
            yield page
        if len(page) < count:
            return
        largest = max(largest // 2, *map(size_of, page), 1)
        count = max(1, min(size, count * _GROWTH, MAX_BYTES // largest))
        start = str(StreamId.parse(page[-1][0].decode()).next())


def pages(reader: RedisReader, key: str, start: str, end: str, size: int) -> Iterator[list[StreamEntry]]:
    """Return the same, with the fields of each entry by name."""
    for page in raw_pages(reader, key, start, end, size):
        yield [(one, _by_name(fields)) for one, fields in page]


def _by_name(fields: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(fields[::2], fields[1::2], strict=True))


# From entries to Arrow


class _Unusual(Exception):
    """Entries that have to be read one by one: with a field of a newer library, or with a foreign value."""


def to_batch(entries: Sequence[RawEntry]) -> pa.RecordBatch:
    """Return entries as a batch of the fixed schema.

    Column by column, and mostly in Arrow: a third of the time of making a row from each entry.

    Raises:
        JournalError: An entry was not written by this library.
    """
    try:
        return _batch_by_columns(entries)
    except (_Unusual, pa.ArrowInvalid, ValueError):
        rows = [decode(stream_id, _by_name(fields), int) for stream_id, fields in entries]  # says which one is foreign
        columns = [pa.array([row[one.name] for row in rows], one.type) for one in SCHEMA]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _batch_by_columns(entries: Sequence[RawEntry]) -> pa.RecordBatch:
    count = len(entries)
    found: dict[bytes, list[bytes | None]] = {}
    for place, (_, fields) in enumerate(entries):
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            if name not in found:
                if name not in _COLUMNS:
                    raise _Unusual
                found[name] = [None] * count
            found[name][place] = value
    columns = {column: _column(found.get(name.encode()), kind, count) for name, column, kind in _FIELDS}
    timeless = pc.is_null(columns["at"])
    if (
        columns["serial"].null_count
        or columns["event"].null_count
        or (pc.any(pc.and_(timeless, pc.not_equal(columns["event"], "gap"))).as_py())
    ):
        raise _Unusual
    ids = pa.array([one for one, _ in entries], pa.binary()).cast(pa.string())
    return pa.RecordBatch.from_arrays([*columns.values(), pa.nulls(count, pa.string()), ids], schema=SCHEMA)


def _column(values: list[bytes | None] | None, kind: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, kind)
    if pa.types.is_binary(kind):
        return pa.array(values, kind)
    if pa.types.is_map(kind):
        return pa.array([_pairs(one) if one else None for one in values], kind)
    text = pa.array([one or None for one in values], pa.binary()).cast(pa.string())  # an empty value means null
    if pa.types.is_string(kind):
        return text
    number = text.cast(pa.int64())
    return number.cast(kind) if pa.types.is_timestamp(kind) else number


def _id_and_serial(entry: list[Any]) -> tuple[StreamId, int]:
    """Return the id and the serial of an entry as the server sends it."""
    stream_id, fields = entry
    row = decode(stream_id, _by_name(fields), int)
    return StreamId.parse(stream_id.decode()), int(row["serial"])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _pairs(value: bytes) -> list[tuple[str, str]]:
    """Return the texts of a JSON object, as Arrow takes a map."""
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return [(name, text) for name, text in found.items() if isinstance(text, str)]


def _reader(kind: pa.DataType) -> Callable[[bytes], Any]:
    if pa.types.is_binary(kind):
        return bytes
    if pa.types.is_map(kind):
        return _pairs
    return _text if pa.types.is_string(kind) else _whole


def _whole(value: bytes) -> int:
    """Return a number that fits into a column."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise OverflowError("a number of more than 64 bits")
    return number


_COLUMNS = {name.encode(): (column, _reader(kind), pa.types.is_timestamp(kind)) for name, column, kind in _FIELDS}
_NOTHING: dict[str, Any] = dict.fromkeys(SCHEMA.names)


def decode(stream_id: bytes, fields: Mapping[bytes, bytes], time: Callable[[int], Any]) -> dict[str, Any]:
    """Return an entry as a row of the schema. ``time`` makes a time from microseconds."""
    row = {**_NOTHING, "stream_id": stream_id.decode()}
    more: dict[str, str] = {}
    for name, value in fields.items():
        column, read, is_time = _COLUMNS.get(name, ("", _text, False))
        if not column:
            more[_text(name)] = _text(value)
        elif value != b"" or name == b"payload":  # in other fields an empty value means null
            try:
                row[column] = time(_whole(value)) if is_time else read(value)
            except (ValueError, OverflowError) as error:
                raise _foreign_entry(stream_id, f"a foreign value in {name.decode()!r}") from error
    if more:
        row["more"] = json.dumps(more, sort_keys=True)
    for column in ("serial", "event", "at"):
        # A gap is written when the journal is trimmed, and has no time.
        if row[column] is None and (column, row["event"]) != ("at", "gap"):
            raise _foreign_entry(stream_id, f"no {column!r}")
    return row


def _foreign_entry(stream_id: bytes, what: str) -> JournalError:
    return JournalError(
        f"the entry {stream_id.decode()} of the journal has {what}: it was not written by this library. "
        "Remove it with XDEL."
    )
