"""The sink: rows become messages, a thousand in one script, and a repeated task or epoch publishes none of them twice.

A message is there for its consumers as soon as its script has run. So `commit` has nothing left to do, and `abort` can
take nothing back: what makes a repetition harmless is the deduplication key of each message.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from redis_message_queue.checks import number
from redis_message_queue.envelope import tenant_name
from redis_message_queue.errors import (
    ConfigurationError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
    RedisMessageQueueError,
)
from redis_message_queue.identity import fresh_id
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish import Outgoing, chunk_ids, chunks
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.spark.options import SinkOptions, spoken
from redis_message_queue.sync.port import BlockingPort

T = TypeVar("T")
MakeKeys = Callable[[Sequence[Outgoing]], Sequence[str]]


# What a row says


@dataclass(frozen=True)
class RowReader:
    """Takes messages out of Arrow batches; made on the driver, where a column that is not there is an error."""

    options: SinkOptions
    names: tuple[str, ...]
    payload: int
    key: int | None
    tenant: int | None
    delay: int | None

    @classmethod
    def of(cls, options: SinkOptions, schema: t.StructType) -> RowReader:
        """Finds the columns that the options name in the schema of a DataFrame, and checks their types."""
        payload, key, tenant, delay = (_find(schema, name, getattr(options, name)) for name in _TYPES)
        assert payload is not None  # this option has a default
        return cls(options, tuple(schema.fieldNames()), payload, key, tenant, delay)

    def messages(self, batch: pa.RecordBatch) -> list[Outgoing]:
        """The rows of a batch as messages without markers."""
        payloads = self._payloads(batch)
        if self.tenant is None and self.delay is None:
            return [Outgoing(payload) for payload in payloads]
        tenants = self._read(batch, self.tenant, _tenants) or [b""] * len(payloads)
        due_times = self._read(batch, self.delay, _due_times) or [""] * len(payloads)
        return [
            Outgoing(payload, tenant=tenant, due=due)
            for payload, tenant, due in zip(payloads, tenants, due_times, strict=True)
        ]

    def keys(self, batch: pa.RecordBatch) -> list[str] | None:
        """The deduplication keys in a batch; None where there is no column for them."""
        return self._read(batch, self.key, _keys)

    def _payloads(self, batch: pa.RecordBatch) -> list[bytes]:
        column, name = batch.column(self.payload), self.names[self.payload]
        if column.null_count:
            raise PayloadTypeError(
                f"column {name} is null in a row, and a message has a payload; filter such rows out, or coalesce"
            )
        payloads: list[bytes] = column.cast(pa.binary()).to_pylist()
        largest = max(map(len, payloads), default=0)
        if largest > self.options.max_payload_bytes:
            raise PayloadTooLargeError(
                f"column {name} has {largest:,} bytes in a row, and maxPayloadBytes is "
                f"{self.options.max_payload_bytes:,}; shorten it, or publish a reference to it"
            )
        return payloads

    def _read(self, batch: pa.RecordBatch, place: int | None, read: Callable[[pa.Array], list[T]]) -> list[T] | None:
        """The values of a column, if there is one; an error names it."""
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
    "delay_column": ((t.NumericType, t.TimestampType), "a number of seconds or a timestamp"),
}


def _find(schema: t.StructType, option: str, wanted: str | None) -> int | None:
    """The place of a column, its case aside where that leaves no doubt, as Spark does it."""
    if wanted is None:
        return None
    names = schema.fieldNames()
    places = [place for place, name in enumerate(names) if name == wanted] or [
        place for place, name in enumerate(names) if name.lower() == wanted.lower()
    ]
    if len(places) != 1:
        what = "no column" if not places else "more than one column"
        raise ConfigurationError(f"there is {what} {wanted} ({spoken(option)}); the columns are: {', '.join(names)}")
    kinds, allowed = _TYPES[option]
    if not isinstance(kind := schema[places[0]].dataType, kinds):
        hint = "make it a string with to_json" if option == "payload_column" else "cast it"
        raise ConfigurationError(
            f"column {wanted} ({spoken(option)}) must be {allowed}, and is {kind.simpleString()}; {hint}"
        )
    return places[0]


def _keys(column: pa.Array) -> list[str]:
    keys: list[str] = column.cast(pa.string()).to_pylist()
    if column.null_count or "" in keys:
        raise PayloadValueError(
            f"a deduplication key is {'null' if column.null_count else 'empty'}; give every row one, "
            "or leave dedupKeyColumn out"
        )
    return keys


def _tenants(column: pa.Array) -> list[bytes]:
    return [b"" if one is None else tenant_name(one) for one in column.to_pylist()]


def _due_times(column: pa.Array) -> list[str]:
    """When messages may be delivered, as the scripts read it."""
    if pa.types.is_timestamp(column.type):
        return ["" if one is None else str(max(0, one)) for one in column.cast(pa.int64()).to_pylist()]
    return ["" if one is None else _from_now(float(one)) for one in column.to_pylist()]


def _from_now(seconds: float) -> str:
    number("a delay in seconds", seconds, least=0)
    return f"+{int(seconds * 1_000_000)}"


# What makes a repetition known


@dataclass
class ContentKeys:
    """The keys of a stream without a key column: query, batch, partition, content, and which of its kind it is.

    Never the place of a row: a task that is run again may see its rows in another order. Of rows with the same content
    it does not matter which is which. A digest a row is remembered for that: some 100 bytes of the task's memory.
    """

    scope: str  # query, batch and partition

    def __post_init__(self) -> None:
        self._seen: Counter[bytes] = Counter()

    def __call__(self, messages: Sequence[Outgoing]) -> list[str]:
        """The keys of the next messages of the partition."""
        return [self._key(one) for one in messages]

    def _key(self, message: Outgoing) -> str:
        content = hashlib.blake2b(digest_size=16)
        for part in (message.tenant, message.due.encode()):
            content.update(b"%d:%b" % (len(part), part))
        content.update(message.payload)
        digest = content.digest()
        self._seen[digest] += 1
        return f"spark:{self.scope}:{digest.hex()}:{self._seen[digest]}"


# What publishes


@dataclass
class Sent(WriterCommitMessage):
    """What a task reports: how many of its rows became messages, and how many were there already."""

    published: int = 0
    duplicates: int = 0


class BulkPublisher:
    """Publishes prepared messages into one queue, a script at a time, each of them all or nothing."""

    def __init__(
        self,
        client: Any,
        keys: QueueKeys,
        *,
        deduplication_seconds: float,
        max_pending_length: int | None = None,
        max_pending_per_tenant: int | None = None,
        patience: float,
    ) -> None:
        self._patience = patience  # seconds that a script may wait for room
        limited = max_pending_length or max_pending_per_tenant
        rules = GatewayOptions(
            message_deduplication_log_ttl_seconds=deduplication_seconds,
            max_pending_length=max_pending_length,
            max_pending_per_tenant=max_pending_per_tenant,
            pending_overload_policy="block" if limited else "raise",
        )
        self._store = RedisStore(BlockingPort(client), keys, rules)

    def publish(self, messages: Sequence[Outgoing], keys: Sequence[str] | None) -> Sent:
        """Put them into their lines, in their order; a script that finds no room is sent again until time is up."""
        if keys is not None:
            for one, key in zip(messages, keys, strict=True):
                one.marker = self._store.keys.deduplication(key, one.tenant.decode() or None)
        sent = Sent()
        for chunk in chunks(messages, self._store.options):
            ids = chunk_ids(fresh_id(), len(chunk))
            accepted = finish(self._store.publisher.publish(ids, chunk, _never, self._patience)).accepted
            sent.published += sum(accepted)
            sent.duplicates += len(accepted) - sum(accepted)
        return sent


def _never() -> bool:
    return False


def publish_rows(rows: RowReader, batches: Iterator[pa.RecordBatch], make_keys: MakeKeys | None) -> Sent:
    """One task's work: all rows of a partition, a slice at a time so that few are in memory twice."""
    options, total = rows.options, Sent()
    with closing(options.connect()) as client:
        publisher = BulkPublisher(
            client,
            options.keys,
            deduplication_seconds=options.deduplication_seconds,
            max_pending_length=options.max_pending_length,
            max_pending_per_tenant=options.max_pending_per_tenant,
            patience=options.pressure_timeout_seconds,
        )
        for batch in batches:
            for start in range(0, batch.num_rows, options.batch_size):
                part = batch.slice(start, options.batch_size)
                messages, keys = rows.messages(part), rows.keys(part)
                if keys is None and make_keys is not None:
                    keys = list(make_keys(messages))
                sent = publisher.publish(messages, keys)
                total.published += sent.published
                total.duplicates += sent.duplicates
    return total


# What Spark calls


class QueueWriter(DataSourceArrowWriter):
    """`df.write`: exact with `dedupKeyColumn`, at least once without, because a task that is retried begins anew."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return publish_rows(self._rows, iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: every message has been there since its script ran."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: consumers may have the messages already. Write again, with the same keys."""


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: exact within `deduplicationSeconds`, by `dedupKeyColumn` or by the content of the rows."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return publish_rows(self._rows, iterator, ContentKeys(_scope()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: every message has been there since its script ran."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back. The replay of this epoch publishes what is missing, and skips what is there."""


def _scope() -> str:
    """What names this partition of this epoch in every attempt, also after a restart from the checkpoint."""
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    epoch = context and context.getLocalProperty("streaming.sql.batchId")
    if context is None or not query or not epoch:
        raise ConfigurationError(
            "Spark did not tell which query and batch this is, so a repetition would not be recognised; "
            "set dedupKeyColumn"
        )
    return f"{query}:{epoch}:{context.partitionId()}"
