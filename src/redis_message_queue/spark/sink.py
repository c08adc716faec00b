"""The sink: rows become messages, a thousand in one script, and a repeated task or epoch publishes none of them twice.

A message is there for consumers as soon as its script has run. So `commit` has nothing left to do and `abort` can take
nothing back: the deduplication key of each message makes a repetition harmless.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from random import randrange
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.process.identity import new_id
from redis_message_queue.protocol.calls import never_stop
from redis_message_queue.protocol.parts import Part, Parts
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.sender import OutgoingMessage, chunk_ids, chunks
from redis_message_queue.spark.connection import open_partitions
from redis_message_queue.spark.options import PublishOptions, SinkOptions, spark_name
from redis_message_queue.stored import headers
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.sync.redis_port import BlockingPort
from redis_message_queue.values.checks import number
from redis_message_queue.values.errors import (
    ConfigurationError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
    RedisMessageQueueError,
)

T = TypeVar("T")
MakeKeys = Callable[[Sequence[OutgoingMessage], Sequence[str | None] | None], Sequence[str]]


# From rows to messages


@dataclass(frozen=True)
class RowReader:
    """Reads messages from Arrow batches. Made on the driver, where a missing column is an error."""

    options: SinkOptions
    names: tuple[str, ...]
    payload: int
    key: int | None
    tenant: int | None
    partition_key: int | None
    delay: int | None
    headers: int | None

    @classmethod
    def of(cls, options: SinkOptions, schema: t.StructType) -> RowReader:
        """Find the columns that the options name in the schema of a DataFrame, and check their types."""
        payload, *others = (_find(schema, name, getattr(options, name)) for name in _TYPES)
        assert payload is not None  # this option has a default
        return cls(options, tuple(schema.fieldNames()), payload, *others)

    def messages(self, batch: pa.RecordBatch) -> list[OutgoingMessage]:
        """Return the rows of a batch as messages without deduplication markers."""
        payloads = self._payloads(batch)
        if self.tenant is self.delay is self.headers is None:
            return [OutgoingMessage(payload) for payload in payloads]
        tenants = self._read(batch, self.tenant, _tenants) or [b""] * len(payloads)
        due_times = self._read(batch, self.delay, _due_times) or [""] * len(payloads)
        extras = self._read(batch, self.headers, _extras) or [b""] * len(payloads)
        return [
            OutgoingMessage(payload, tenant=tenant, due=due, extras=texts)
            for payload, tenant, due, texts in zip(payloads, tenants, due_times, extras, strict=True)
        ]

    def keys(self, batch: pa.RecordBatch) -> list[str] | None:
        """Return the deduplication keys of a batch, or None if there is no column for them."""
        return self._read(batch, self.key, _keys)

    def partition_keys(self, batch: pa.RecordBatch) -> list[str | None] | None:
        """Return the partition keys of a batch, or None if there is no column for them."""
        return self._read(batch, self.partition_key, _partition_keys)

    def _payloads(self, batch: pa.RecordBatch) -> list[bytes]:
        column, name = batch.column(self.payload), self.names[self.payload]
        if column.null_count:
            raise PayloadTypeError(
                f"column {name} is null in a row, but every message has a payload; filter such rows out, or coalesce"
            )
        payloads: list[bytes] = column.cast(pa.binary()).to_pylist()
        largest = max(map(len, payloads), default=0)
        if largest > self.options.max_payload_bytes:
            raise PayloadTooLargeError(
                f"column {name} has {largest:,} bytes in a row, but maxPayloadBytes is "
                f"{self.options.max_payload_bytes:,}; shorten it, or publish a reference to it"
            )
        return payloads

    def _read(self, batch: pa.RecordBatch, place: int | None, read: Callable[[pa.Array], list[T]]) -> list[T] | None:
        """Return the values of a column, if there is one. Errors name the column."""
        if place is None:
            return None
        try:
            return read(batch.column(place))
        except RedisMessageQueueError as error:
            raise type(error)(f"column {self.names[place]}: {error}") from None


_TYPES: dict[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "payload_column": ((t.StringType, t.BinaryType), "string or binary"),
    "dedup_key_column": ((t.StringType, t.IntegralType), "string or a whole number"),
    "tenant_column": ((t.StringType,), "string"),
    "partition_key_column": ((t.StringType, t.IntegralType), "string or a whole number"),
    "delay_column": ((t.NumericType, t.TimestampType), "a number of seconds or a timestamp"),
    "headers_column": ((t.MapType,), "map<string,string>"),
}


def _find(schema: t.StructType, option: str, wanted: str | None) -> int | None:
    """Return the index of a column. The case may differ if the name is still unique, as in Spark."""
    if wanted is None:
        return None
    names, shown = schema.fieldNames(), spark_name(option)
    places = [place for place, name in enumerate(names) if name == wanted] or [
        place for place, name in enumerate(names) if name.lower() == wanted.lower()
    ]
    if len(places) != 1:
        what = "no column" if not places else "more than one column"
        raise ConfigurationError(f"there is {what} {wanted} ({shown}); the columns are: {', '.join(names)}")
    kinds, allowed = _TYPES[option]
    if not isinstance(kind := schema[places[0]].dataType, kinds):
        hint = "make it a string with to_json" if option == "payload_column" else "cast it"
        raise ConfigurationError(f"column {wanted} ({shown}) must be {allowed}, not {kind.simpleString()}; {hint}")
    return places[0]


def _keys(column: pa.Array) -> list[str]:
    keys: list[str] = column.cast(pa.string()).to_pylist()
    if column.null_count or "" in keys:
        raise PayloadValueError(
            f"a deduplication key is {'null' if column.null_count else 'empty'}; give every row one, "
            "or leave dedupKeyColumn out"
        )
    return keys


def _partition_keys(column: pa.Array) -> list[str | None]:
    keys: list[str | None] = column.cast(pa.string()).to_pylist()
    if "" in keys:
        raise PayloadValueError("a partition key is empty; write null for a row without one")
    return keys


def _tenants(column: pa.Array) -> list[bytes]:
    return [b"" if one is None else tenant_name(one) for one in column.to_pylist()]


def _extras(column: pa.Array) -> list[bytes]:
    return [headers.encode(dict(one or ()), "the row") for one in column.to_pylist()]


def _due_times(column: pa.Array) -> list[str]:
    """Return the due times as the scripts read them: microseconds since 1970, or from now after a plus."""
    if pa.types.is_timestamp(column.type):
        return ["" if one is None else str(max(0, one)) for one in column.cast(pa.int64()).to_pylist()]
    return ["" if one is None else _from_now(float(one)) for one in column.to_pylist()]


def _from_now(seconds: float) -> str:
    number("a delay in seconds", seconds, least=0)
    return f"+{int(seconds * 1_000_000)}"


@dataclass
class ContentKeys:
    """Makes deduplication keys for a stream without a key column: from scope, content, and the count of equal rows.

    Not from the index of a row: a task that is run again may see its rows in another order. Rows with equal content
    are interchangeable. The task remembers a digest per row for that, some 100 bytes of memory.
    """

    scope: str  # query, epoch and partition

    def __post_init__(self) -> None:
        self._seen: Counter[bytes] = Counter()

    def __call__(
        self, messages: Sequence[OutgoingMessage], partition_keys: Sequence[str | None] | None = None
    ) -> list[str]:
        """Return the keys of the next messages of the task."""
        return [*map(self._key, messages, partition_keys or repeat(None))]

    def _key(self, message: OutgoingMessage, partition_key: str | None) -> str:
        content = hashlib.blake2b(digest_size=16)
        if partition_key is not None:  # rows for different partitions are not interchangeable
            content.update(b"%d:%b:" % (len(partition_key.encode()), partition_key.encode()))
        for part in (message.tenant, message.due.encode(), message.extras):
            content.update(b"%d:%b" % (len(part), part))
        content.update(message.payload)
        digest = content.digest()
        self._seen[digest] += 1
        return f"spark:{self.scope}:{digest.hex()}:{self._seen[digest]}"


# Publishing


@dataclass
class PublishCount(WriterCommitMessage):
    """How many rows were published, and how many were suppressed as duplicates."""

    published: int = 0
    suppressed: int = 0


class BulkPublisher:
    """Publishes messages into one queue in chunks, each all or nothing, over its own client."""

    def __init__(self, options: PublishOptions) -> None:
        limited = options.max_pending_length or options.max_pending_per_tenant
        self._block_seconds = options.pending_overload_block_timeout_seconds
        self._client = options.connect()
        self._rules = GatewayOptions(
            message_deduplication_log_ttl_seconds=options.message_deduplication_log_ttl_seconds,
            max_pending_length=options.max_pending_length,
            max_pending_per_tenant=options.max_pending_per_tenant,
            pending_overload_policy="block" if limited else "raise",
        )
        self._partitions = self._open(options)
        self._turn = randrange(len(self._partitions))  # tasks that start together do not all begin with the same
        self.count = PublishCount()  # of all messages so far

    def _open(self, options: PublishOptions) -> Parts:
        try:
            count = len(open_partitions(self._client, options))
        except BaseException:
            self._client.close()
            raise
        port = BlockingPort(self._client)
        return Parts.of(port, options.keys, self._rules, count)

    def __enter__(self) -> BulkPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def publish(
        self,
        messages: Sequence[OutgoingMessage],
        keys: Sequence[str] | None,
        partition_keys: Sequence[str | None] | None = None,
    ) -> None:
        """Publish messages, in their order within each partition. If one is full, wait until the time is up."""
        places = self._places(messages, keys, partition_keys)
        for partition, some in places.items():
            store = self._partitions[partition]
            if keys is not None:
                for place in some:
                    tenant = messages[place].tenant.decode() or None
                    messages[place].marker = store.keys.deduplication(keys[place], tenant)
            self._send(store, [messages[place] for place in some] if len(places) > 1 else messages)

    def _places(
        self,
        messages: Sequence[OutgoingMessage],
        keys: Sequence[str] | None,
        partition_keys: Sequence[str | None] | None,
    ) -> dict[int, Sequence[int]]:
        """Return which messages go to which partition: by partition key, tenant or deduplication key, or in turn.

        A task that is repeated chooses the same for all messages that have a key: there the key is known.
        """
        count = len(self._partitions)
        if count == 1:
            return {0: range(len(messages))}
        self._turn = (self._turn + 1) % count
        found: dict[int, list[int]] = {}
        for place, one in enumerate(messages):
            key = (
                (partition_keys[place] if partition_keys else None)
                or one.tenant.decode()
                or (keys[place] if keys else None)
            )
            found.setdefault(partition_of(key, count) if key else self._turn, []).append(place)
        return {**found}

    def _send(self, part: Part, messages: Sequence[OutgoingMessage]) -> None:
        for chunk in chunks(messages, self._rules):
            ids = chunk_ids(new_id(), len(chunk))
            accepted = finish(part.sender.send(ids, chunk, never_stop, self._block_seconds)).accepted
            self.count.published += sum(accepted)
            self.count.suppressed += len(accepted) - sum(accepted)


def publish_rows(rows: RowReader, batches: Iterator[pa.RecordBatch], make_keys: MakeKeys | None) -> PublishCount:
    """Publish all rows of a partition, in slices so that few rows are in memory twice."""
    size = rows.options.batch_size
    with BulkPublisher(rows.options) as publisher:
        for batch in batches:
            for start in range(0, batch.num_rows, size):
                part = batch.slice(start, size)
                messages, keys, partition_keys = rows.messages(part), rows.keys(part), rows.partition_keys(part)
                if keys is None and make_keys is not None:
                    keys = list(make_keys(messages, partition_keys))
                publisher.publish(messages, keys, partition_keys)
    return publisher.count


# What Spark calls


class QueueWriter(DataSourceArrowWriter):
    """`df.write`: exactly once with `dedupKeyColumn`, at least once without, because a retried task starts again."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishCount:
        return publish_rows(self._rows, iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: every message has been there since its script ran."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: consumers may have the messages already. Write again, with the same keys."""


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: exactly once within the deduplication window, by `dedupKeyColumn` or by content."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishCount:
        return publish_rows(self._rows, iterator, ContentKeys(_scope()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: every message has been there since its script ran."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the replay of this epoch publishes what is missing and skips what is there."""


def _scope() -> str:
    """Return what names this partition of this epoch in every attempt, also after a restart from the checkpoint."""
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    epoch = context and context.getLocalProperty("streaming.sql.batchId")
    if context is None or not query or not epoch:
        raise ConfigurationError(
            "Spark did not say which query and epoch this is, so a repetition could not be recognised; "
            "set dedupKeyColumn"
        )
    return f"{query}:{epoch}:{context.partitionId()}"
