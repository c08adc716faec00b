"""Publishes the rows of a job, each once for its deduplication key."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from redis_message_queue.protocol.publish.sender import OutgoingMessage
from redis_message_queue.spark.options import PublishOptions
from redis_message_queue.spark.sink import BulkPublisher, PublishCount
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.values.errors import PayloadValueError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("payload", "tenant", "key", "extras")
_EXAMPLES = 10
_COUNTS = ("rows", "published", "suppressed", "without_payload", "without_id")


@dataclass
class RowCount:
    """What became of the rows of a job."""

    rows: int = 0
    published: int = 0
    suppressed: int = 0
    without_payload: int = 0
    without_id: int = 0
    examples: list[str] = field(default_factory=list)  # ids

    def __add__(self, other: "RowCount") -> "RowCount":
        sums = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return RowCount(**sums, examples=(self.examples + other.examples)[:_EXAMPLES])

    def take(self, row: Mapping[str, Any]) -> bool:
        """Count a row. Returns whether it can be published."""
        self.rows += 1
        self.without_payload += row["payload"] is None
        self.without_id += row["payload"] is not None and row["id"] is None
        complete = row["payload"] is not None and row["id"] is not None
        if complete and len(self.examples) < _EXAMPLES:
            self.examples.append(row["id"])
        return complete

    def take_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count the rows of a batch. Returns those that can be published."""
        has_payload, has_id = pc.is_valid(batch.column("payload")), pc.is_valid(batch.column("id"))
        complete = batch.filter(pc.and_(has_payload, has_id))
        payloads = pc.sum(has_payload).as_py() or 0
        self.rows += batch.num_rows
        self.without_payload += batch.num_rows - payloads
        self.without_id += payloads - complete.num_rows
        self.examples += complete.column("id").slice(0, _EXAMPLES - len(self.examples)).to_pylist()
        return complete


def publish_rows(rows: "DataFrame", options: PublishOptions, *, skip_incomplete: bool = False) -> RowCount:
    """Publish rows with the columns `payload`, `tenant`, `key` and `extras` from all tasks at once.

    With ``skip_incomplete`` there is a column `id`, and rows without id or payload are only counted.
    """

    def publish(batches: Iterator[pa.RecordBatch]) -> RowCount:
        count = RowCount()
        with BulkPublisher(options) as publisher:
            for batch in batches:
                complete = count.take_batch(batch) if skip_incomplete else batch
                for start in range(0, complete.num_rows, options.batch_size):
                    publisher.publish(*_messages_in(complete.slice(start, options.batch_size)))
        return _with_results(count, publisher.count)

    return sum_of_tasks(rows.select(*COLUMNS, *(["id"] if skip_incomplete else [])), publish)


def count_rows(rows: "DataFrame") -> RowCount:
    """Count what `publish_rows` would publish."""

    def count(batches: Iterator[pa.RecordBatch]) -> RowCount:
        found = RowCount()
        for batch in batches:
            found.take_batch(batch)
        return found

    return sum_of_tasks(rows.selectExpr("id", "if(payload is null, null, true) as payload"), count)


def sum_of_tasks(rows: "DataFrame", work: Callable[[Iterator[pa.RecordBatch]], RowCount]) -> RowCount:
    """Return the sum of what the tasks count."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"count": [json.dumps(asdict(work(batches)))]})

    counts = (RowCount(**json.loads(row["count"])) for row in rows.mapInArrow(run, "count string").collect())
    return sum(counts, RowCount())


def _with_results(count: RowCount, published: PublishCount) -> RowCount:
    return replace(count, published=published.published, suppressed=published.suppressed)


def publish_at_rate(
    options: PublishOptions, rows: Iterable[Any], rate: float, on_batch: Callable[[int], Any]
) -> RowCount:
    """Publish from the driver, at most ``rate`` messages a second. Suppressed messages take no time."""
    size = max(1, min(options.batch_size, int(rate)))
    count = RowCount()
    started, rest = time.monotonic(), filter(count.take, rows)
    with BulkPublisher(options) as publisher:
        done = publisher.count
        while batch := list(islice(rest, size)):
            publisher.publish(*messages_of(batch))
            on_batch(done.published + done.suppressed)
            if len(batch) == size:
                time.sleep(pause(time.monotonic() - started, done.published, rate))
    return _with_results(count, done)


def pause(elapsed: float, published: int, rate: float) -> float:
    """Return how long to wait so that no more than ``rate`` messages a second are published."""
    return max(0.0, published / rate - elapsed)


def messages_of(rows: Iterable[Any]) -> tuple[list[OutgoingMessage], list[str]]:
    """Return rows as messages, and their deduplication keys."""
    return _messages((*(row[name] for name in COLUMNS),) for row in rows)


def _messages_in(batch: pa.RecordBatch) -> tuple[list[OutgoingMessage], list[str]]:
    """Return the same for a batch. Column by column: a row as a dict costs as much as its message."""
    return _messages(zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True))


def _messages(rows: Iterable[tuple[Any, ...]]) -> tuple[list[OutgoingMessage], list[str]]:
    messages: list[OutgoingMessage] = []
    keys: list[str] = []
    for payload, tenant, key, extras in rows:
        if not key:
            raise PayloadValueError("a row has no deduplication key: fill the column, or leave such rows out")
        if payload is None:
            raise PayloadValueError(f"the row with the deduplication key {key!r} has no payload")
        name = tenant_name(tenant) if tenant else b""
        messages.append(OutgoingMessage(bytes(payload), tenant=name, extras=(extras or "").encode()))
        keys.append(key)
    return messages, keys
