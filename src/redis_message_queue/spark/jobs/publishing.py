"""Publishes the rows of a Spark job in bounded batches: each once for its key, waiting where a queue is full."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from redis_message_queue import checks
from redis_message_queue.envelope import tenant_name
from redis_message_queue.errors import PayloadValueError
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish import Outgoing, chunk_ids, chunks
from redis_message_queue.spark.journal import QueueAddress
from redis_message_queue.sync.queue import RedisMessageQueue

OUTCOME = "published bigint, suppressed bigint"
COLUMNS = ("payload", "tenant", "key", "extras")
_OUTCOME = pa.schema([("published", pa.int64()), ("suppressed", pa.int64())])


class Parcel(NamedTuple):
    """A row on its way into a queue."""

    payload: bytes
    tenant: str | None
    key: str
    extras: str | None = None


@dataclass(frozen=True, kw_only=True)
class PublishOptions(QueueAddress):
    """How the jobs that publish do it."""

    batch_size: int = 1_000
    remember_seconds: float = 30 * 86_400  # how long a key suppresses its repetition
    max_pending_length: int | None = None  # of the queue, which does not tell it itself
    wait_seconds: float = 60  # for room in a full queue

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole_number("batch_size", self.batch_size)
        checks.number("remember_seconds", self.remember_seconds)
        checks.whole_number("max_pending_length", self.max_pending_length, optional=True)
        checks.number("wait_seconds", self.wait_seconds, least=0)


class Pen:
    """Publishes parcels through a queue object of its own, and counts what became of them."""

    def __init__(self, options: PublishOptions) -> None:
        self._options = options
        self._client = options.connect()
        self._queue = RedisMessageQueue(
            options.queue,
            client=self._client,
            key_separator=options.key_separator,
            hash_tag=options.hash_tag or None,
            message_deduplication_log_ttl_seconds=options.remember_seconds,
            max_pending_length=options.max_pending_length,
            pending_overload_policy="block" if options.max_pending_length else "raise",
            pending_overload_block_timeout_seconds=options.wait_seconds or 0.001,
        )
        self.published = self.suppressed = 0

    def __enter__(self) -> "Pen":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def publish(self, parcels: Iterable[Parcel]) -> None:
        """One batch: each parcel enters the queue, or is suppressed because its key has entered before."""
        store = self._queue._protocol.store
        outgoing = [
            Outgoing(
                one.payload,
                marker=store.keys.deduplication(one.key),
                tenant=tenant_name(one.tenant) if one.tenant else b"",
                extras=(one.extras or "").encode(),
            )
            for one in parcels
        ]
        for chunk in chunks(outgoing, store.options):
            ids = chunk_ids(store.port.fresh_id(), len(chunk))
            accepted = finish(store.publisher.publish(ids, chunk, lambda: False)).accepted
            self.published += sum(accepted)
            self.suppressed += len(accepted) - sum(accepted)


def publish_batches(options: PublishOptions) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task runs: everything of its partition, and then one row that says what became of it."""

    def publish(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Pen(options) as pen:
            for batch in batches:
                for start in range(0, batch.num_rows, options.batch_size):
                    pen.publish(parcels(batch.slice(start, options.batch_size).to_pylist()))
            counts = [{"published": pen.published, "suppressed": pen.suppressed}]
            yield pa.RecordBatch.from_pylist(counts, schema=_OUTCOME)

    return publish


def publish_slowly(
    options: PublishOptions, rows: Iterable[Any], rate: float, on_batch: Callable[[int], Any]
) -> tuple[int, int]:
    """From one place, at most ``rate`` messages a second; suppressed ones take no time."""
    size = max(1, min(options.batch_size, int(rate)))
    begun = time.monotonic()
    with Pen(options) as pen:
        waiting: list[dict[str, Any]] = []
        for row in rows:
            waiting.append(row)
            if len(waiting) == size:
                pen.publish(parcels(waiting))
                waiting = []
                on_batch(pen.published + pen.suppressed)
                time.sleep(pause(time.monotonic() - begun, pen.published, rate))
        pen.publish(parcels(waiting))
        return pen.published, pen.suppressed


def pause(elapsed: float, published: int, rate: float) -> float:
    """How long to wait so that no more than ``rate`` a second have been published."""
    return max(0.0, published / rate - elapsed)


def parcels(rows: Iterable[Any]) -> list[Parcel]:
    found = [Parcel(*(row[name] for name in COLUMNS)) for row in rows]
    for one in found:
        if not one.key:
            raise PayloadValueError("a row has no deduplication key: fill the column, or leave such rows out")
        if one.payload is None:
            raise PayloadValueError(f"the row with the deduplication key {one.key!r} has no payload")
    return [one._replace(payload=bytes(one.payload)) for one in found]


def digest(*parts: str) -> str:
    """A short name for any texts, which a different list of texts does not have."""
    return hashlib.sha256("".join(f"{len(one)}:{one}" for one in parts).encode()).hexdigest()[:32]
