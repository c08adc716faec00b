"""Reads a queue's journal: the Redis STREAM in which its scripts write down every state change."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from redis_message_queue import checks
from redis_message_queue.errors import ConfigurationError, JournalError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.scripts import script
from redis_message_queue.spark.connection import connected
from redis_message_queue.spark.look import Look

PAGE = 1_000  # entries a round trip; ten times that many hold the server up for some 5 ms
DAY_MS = 86_400_000
_LAST_SEQUENCE = 2**64 - 1

# The columns of an entry, with the name under which the stream has each. What an entry does not say is null.
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
)
SCHEMA = pa.schema(
    [pa.field(column, kind) for _, column, kind in _FIELDS]
    # Fields that a newer library writes are kept, and where in the stream the entry stood.
    + [pa.field("more", pa.string()), pa.field("stream_id", pa.string())]
)


def ddl(schema: pa.Schema) -> str:
    """The same columns as Spark writes them."""
    kinds = {"int64": "bigint", "string": "string", "binary": "binary"}
    return ", ".join(f"`{one.name}` {kinds.get(str(one.type), 'timestamp')}" for one in schema)


DDL = ddl(SCHEMA)


class StreamId(NamedTuple):
    """The id of a stream entry; ids are ordered as their entries are."""

    ms: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> "StreamId":
        ms, _, sequence = text.partition("-")
        return cls(int(ms), int(sequence or 0))

    def __str__(self) -> str:
        return f"{self.ms}-{self.sequence}"

    def next(self) -> "StreamId":
        """The smallest id after this one."""
        return StreamId(self.ms, self.sequence + 1) if self.sequence < _LAST_SEQUENCE else StreamId(self.ms + 1, 0)

    @property
    def date(self) -> str:
        """The day, in UTC, on which the server wrote the entry. Stream ids never go back, so neither do the days."""
        return datetime.fromtimestamp(self.ms / 1000, UTC).date().isoformat()


BEGINNING = StreamId(0, 0)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the journal: everything from one stream id to another, both included."""

    first: StreamId
    last: StreamId


@dataclass(frozen=True, slots=True)
class JournalState:
    """What the state hash says."""

    has_payloads: bool
    serial: int
    mark: StreamId | None


@dataclass(frozen=True, slots=True)
class Census:
    """Where the journal ends, and how many messages the queue held at that very moment."""

    last: StreamId
    serial: int
    pending: int | None = None
    processing: int | None = None
    delayed: int | None = None


@dataclass(frozen=True, kw_only=True)
class QueueAddress:
    """Where a queue is: the server's URL, the queue's name, and how its keys are formed."""

    url: str = field(repr=False)  # it may have a password
    queue: str
    key_separator: str = "::"
    hash_tag: bool = False
    cluster: bool = False
    dead_letter_key: str | None = None  # where the dead letters are not in the queue's own list

    def __post_init__(self) -> None:
        checks.text("url", self.url)
        checks.text("queue", self.queue)
        checks.text("key_separator", self.key_separator)
        checks.flag("hash_tag", self.hash_tag)
        checks.flag("cluster", self.cluster)
        if self.dead_letter_key is not None:
            checks.text("dead_letter_key", self.dead_letter_key)
        if not self.url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigurationError("url must begin with redis://, rediss:// or unix://")

    @property
    def keys(self) -> QueueKeys:
        return QueueKeys.of(
            self.queue,
            separator=self.key_separator,
            dead_letter=self.dead_letter_key,
            hash_tag=self.hash_tag or self.cluster,
        )

    def connect(self) -> Any:
        """A client of its own; the caller closes it."""
        return connected(self.url, cluster=self.cluster)


class Journal:
    """The journal of one queue, read through a client of its own."""

    def __init__(self, address: QueueAddress) -> None:
        self.address = address
        self._client = address.connect()
        self._keys = address.keys
        self._look = Look(self._client, self._keys)
        self.key, self.state_key = self._keys.journal, self._keys.meta

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    # -- where it stands

    def state(self) -> JournalState:
        """What the state hash says, or an error if the queue has no journal."""
        (found,) = self._look.ask(("HMGET", self.state_key, "journal", "journal_serial", "journal_mark"))
        payload, serial, mark = found
        if payload is None:
            raise JournalError(
                f"the queue {self.address.queue!r} has no journal; open it once with journal=True, or with "
                'journal="payload" to keep payloads too',
                queue=self.address.queue,
            )
        return JournalState(
            has_payloads=payload == b"1",
            serial=int(serial or 0),
            mark=StreamId.parse(mark.decode()) if mark else None,
        )

    def set_mark(self, mark: StreamId) -> None:
        """Let the journal be trimmed up to here. A journal that was deleted meanwhile is not brought back by it."""
        # It is `journal` that makes there be one: a mark alone does nothing until it is taken back.
        marked = ("HSET", self.state_key, "journal_mark", str(mark))
        _, is_there = self._look.ask_at_once(marked, ("HEXISTS", self.state_key, "journal"))
        if not is_there:
            self._look.ask(("HDEL", self.state_key, "journal_mark"))

    def census(self) -> Census | None:
        """The last entry, and the depth of the queue in the same instant; None for an empty journal."""
        stats, keys = script("stats"), self._keys
        names = [keys.dead_letter if name == "dlq" else getattr(keys, name) for name in stats.keys]
        newest, counts = self._look.ask_at_once(
            ("XREVRANGE", self.key, "+", "-", "COUNT", 1),
            ("EVAL", stats.source, len(names), *names, keys.line(""), "", ""),
        )
        if not newest:
            return None
        stream_id, serial = _place(newest[0])
        pending, processing, delayed, *_ = counts
        return Census(stream_id, serial, pending, processing, delayed)

    def after(self, known: StreamId) -> tuple[StreamId, int] | None:
        """The id and serial of the first entry behind ``known``, if there is one."""
        return self._from(known.next())

    def _from(self, start: StreamId) -> tuple[StreamId, int] | None:
        (found,) = self._look.ask(("XRANGE", self.key, str(start), "+", "COUNT", 1))
        return _place(found[0]) if found else None

    def last_serial(self, span: Span) -> int | None:
        """The serial of the last entry of a piece, if it has any."""
        (found,) = self._look.ask(("XREVRANGE", self.key, str(span.last), str(span.first), "COUNT", 1))
        return _place(found[0])[1] if found else None

    # -- what is in it

    def rows(self, span: Span, page: int = PAGE, time: Callable[[int], Any] | None = None) -> Iterator[dict[str, Any]]:
        """The entries of a piece, in their order, read page by page; times as datetimes, or as ``time`` makes them."""
        for found in pages(self._look, self.key, str(span.first), str(span.last), page):
            for stream_id, fields in found:
                yield decode(stream_id, fields, time or from_microseconds)

    def batches(self, span: Span, rows: int = 10_000) -> Iterator[pa.RecordBatch]:
        """The entries of a piece as Arrow batches of the fixed schema."""
        waiting: list[dict[str, Any]] = []
        for row in self.rows(span, time=int):  # microseconds are what Arrow wants
            waiting.append(row)
            if len(waiting) == rows:
                yield _batch(waiting)
                waiting = []
        if waiting:
            yield _batch(waiting)

    # -- pieces of it

    def days(self, span: Span) -> list[Span]:
        """The piece cut at midnight, so that each part is of one date; days without an entry are left out."""
        parts: list[Span] = []
        start: StreamId | None = span.first
        while start is not None and start <= span.last:
            end = min(span.last, StreamId((start.ms // DAY_MS + 1) * DAY_MS - 1, _LAST_SEQUENCE))
            parts.append(Span(start, end))
            behind = self.after(end)
            start = behind[0] if behind else None
        return parts

    def split(self, span: Span, rows: int) -> list[Span]:
        """The piece cut into parts of about ``rows`` entries, for partitions.

        Where to cut is found by bisection over time for the serial that should stand there: some 40 looks a cut,
        instead of reading everything. Parts are cut between milliseconds, so that one burst stays whole.
        """
        first = self._from(span.first)
        if first is None or first[0] > span.last:
            return []
        parts: list[Span] = []
        start, serial = first
        while True:
            cut = self._cut(start, span.last, serial + rows)
            if cut is None:
                return [*parts, Span(start, span.last)]
            parts.append(Span(start, StreamId(cut[0].ms - 1, _LAST_SEQUENCE)))
            start, serial = cut

    def _cut(self, start: StreamId, last: StreamId, serial: int) -> tuple[StreamId, int] | None:
        """The first millisecond after ``start`` whose first entry has this serial or a later one."""
        low, high = start.ms + 1, last.ms + 1
        while low < high:
            middle = (low + high) // 2
            found = self._from(StreamId(middle, 0))
            if found is None or found[1] >= serial:
                high = middle
            else:
                low = found[0].ms + 1
        found = self._from(StreamId(low, 0))
        return found if found is not None and found[0] <= last else None


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Column by column: half the time of `from_pylist`."""
    columns = [pa.array([row[one.name] for row in rows], one.type) for one in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


Entry = tuple[bytes, dict[bytes, bytes]]


def pages(look: Look, key: str, start: str, end: str, size: int) -> Iterator[list[Entry]]:
    """The entries of a stream from one id to another, both included; their fields by name."""
    while True:
        (page,) = look.ask(("XRANGE", key, start, end, "COUNT", size))
        if page:
            yield [(one, dict(zip(fields[::2], fields[1::2], strict=True))) for one, fields in page]
        if len(page) < size:
            return
        start = str(StreamId.parse(page[-1][0].decode()).next())


def _place(entry: list[Any]) -> tuple[StreamId, int]:
    """The id and the serial of an entry as the server sends it."""
    stream_id, fields = entry
    row = decode(stream_id, dict(zip(fields[::2], fields[1::2], strict=True)), int)
    return StreamId.parse(stream_id.decode()), int(row["serial"])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _reader(kind: pa.DataType) -> Callable[[bytes], Any]:
    if pa.types.is_binary(kind):
        return bytes
    return _text if pa.types.is_string(kind) else int


_COLUMNS = {name.encode(): (column, _reader(kind), pa.types.is_timestamp(kind)) for name, column, kind in _FIELDS}
_NOTHING: dict[str, Any] = dict.fromkeys(SCHEMA.names)


def decode(stream_id: bytes, fields: Mapping[bytes, bytes], time: Callable[[int], Any]) -> dict[str, Any]:
    """An entry as a row of the schema; ``time`` makes a time of microseconds."""
    row = {**_NOTHING, "stream_id": stream_id.decode()}
    more: dict[str, str] = {}
    for name, value in fields.items():
        column, read, is_time = _COLUMNS.get(name, ("", _text, False))
        if not column:
            more[_text(name)] = _text(value)
        elif value != b"" or name == b"payload":  # of the others an empty one stands for none
            try:
                row[column] = time(int(value)) if is_time else read(value)
            except (ValueError, OverflowError) as error:
                raise _foreign(stream_id, f"no number in {name.decode()!r}") from error
    if more:
        row["more"] = json.dumps(more, sort_keys=True)
    for column in ("serial", "event", "at"):
        # A gap is told by whoever cuts the journal, and has no time.
        if row[column] is None and (column, row["event"]) != ("at", "gap"):
            raise _foreign(stream_id, f"no {column!r}")
    return row


def _foreign(stream_id: bytes, what: str) -> JournalError:
    return JournalError(
        f"the entry {stream_id.decode()} of the journal has {what}: it was not written by this library; "
        "remove it with XDEL"
    )


def from_microseconds(value: int) -> datetime:
    """Exact, which a division would not be."""
    return datetime.fromtimestamp(value // 1_000_000, UTC).replace(microsecond=value % 1_000_000)


def read_spans(address: QueueAddress, spans: Sequence[Span]) -> Any:
    """What each task of a Spark job runs: for each number that it is given, the entries of that piece."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Journal(address) as journal:
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    yield from journal.batches(spans[place])

    return read
