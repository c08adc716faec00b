"""Publishes the rows of a Spark job in bounded batches: each once for its key, waiting where a queue is full."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from redis_message_queue import checks
from redis_message_queue.envelope import tenant_name
from redis_message_queue.errors import PayloadValueError
from redis_message_queue.protocol.publish import Outgoing
from redis_message_queue.spark.journal import QueueAddress
from redis_message_queue.spark.sink import BulkPublisher, Sent

OUTCOME = "published bigint, suppressed bigint"
COLUMNS = ("payload", "tenant", "key", "extras")
_OUTCOME = pa.schema([("published", pa.int64()), ("suppressed", pa.int64())])


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


@contextmanager
def publisher(options: PublishOptions) -> Iterator[BulkPublisher]:
    """What publishes into the queue, over a client of its own."""
    with closing(options.connect()) as client:
        yield BulkPublisher(
            client,
            options.keys,
            deduplication_seconds=options.remember_seconds,
            max_pending_length=options.max_pending_length,
            patience=options.wait_seconds,
        )


def publish(into: BulkPublisher, rows: Iterable[Any], sent: Sent) -> None:
    """One batch: each row enters the queue, or is suppressed because its key has entered before."""
    outgoing, keys = prepared(rows)
    done = into.publish(outgoing, keys)
    sent.published += done.published
    sent.duplicates += done.duplicates


def publish_batches(options: PublishOptions) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task runs: everything of its partition, and then one row that says what became of it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent = Sent()
        with publisher(options) as into:
            for batch in batches:
                for start in range(0, batch.num_rows, options.batch_size):
                    publish(into, batch.slice(start, options.batch_size).to_pylist(), sent)
        yield pa.RecordBatch.from_pylist([{"published": sent.published, "suppressed": sent.duplicates}], _OUTCOME)

    return run


def publish_slowly(
    options: PublishOptions, rows: Iterable[Any], rate: float, on_batch: Callable[[int], Any]
) -> tuple[int, int]:
    """From one place, at most ``rate`` messages a second; suppressed ones take no time."""
    size = max(1, min(options.batch_size, int(rate)))
    begun, sent, rest = time.monotonic(), Sent(), iter(rows)
    with publisher(options) as into:
        while waiting := list(islice(rest, size)):
            publish(into, waiting, sent)
            on_batch(sent.published + sent.duplicates)
            if len(waiting) == size:
                time.sleep(pause(time.monotonic() - begun, sent.published, rate))
    return sent.published, sent.duplicates


def pause(elapsed: float, published: int, rate: float) -> float:
    """How long to wait so that no more than ``rate`` a second have been published."""
    return max(0.0, published / rate - elapsed)


def prepared(rows: Iterable[Any]) -> tuple[list[Outgoing], list[str]]:
    """Rows with the columns `payload`, `tenant`, `key` and `extras` as messages, and their keys."""
    outgoing: list[Outgoing] = []
    keys: list[str] = []
    for row in rows:
        payload, tenant, key, extras = (row[name] for name in COLUMNS)
        if not key:
            raise PayloadValueError("a row has no deduplication key: fill the column, or leave such rows out")
        if payload is None:
            raise PayloadValueError(f"the row with the deduplication key {key!r} has no payload")
        name = tenant_name(tenant) if tenant else b""
        outgoing.append(Outgoing(bytes(payload), tenant=name, extras=(extras or "").encode()))
        keys.append(key)
    return outgoing, keys


def digest(*parts: str) -> str:
    """A short name for any texts, which a different list of texts does not have."""
    return hashlib.sha256("".join(f"{len(one)}:{one}" for one in parts).encode()).hexdigest()[:32]
