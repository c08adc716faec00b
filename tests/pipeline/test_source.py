"""Every message reaches the sink exactly once, whatever crashes, and the reported progress is correct."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark import QueueListener, StreamProgress, consumer_group
from redis_message_queue.spark.consumer_group import BatchSize, GroupPart, split_members
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.spark.prometheus import StreamMetrics
from redis_message_queue.spark.source import BatchSlice, QueueStreamReader
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.values.errors import ConfigurationError, ConsumerGroupLostError, DataLossError
from tests.spark.streaming_query import numbered, wait_for

pytestmark = pytest.mark.topic("Streaming queries in Spark")
QUEUE, GROUP = "orders", "reports"


@pytest.fixture
def queue(client) -> RedisMessageQueue:
    return RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=300)


# The reader without Spark: the calls that Spark makes, in its order


class Told:
    """Rows as they are, for tests that look at what is read."""

    schema = StructType()

    def batch(self, stored: Any, delivery_counts: Any) -> Any:
        return list(zip([one[25:].decode() for one in stored], delivery_counts, strict=True))


class Readers:
    """Readers of one queue, one run after the other."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.running: list[QueueStreamReader] = []

    def __call__(self, **options: Any) -> QueueStreamReader:
        usual: dict[str, Any] = {"url": self.url, "queue": QUEUE, "consumer_group": GROUP, "lease_seconds": 0.5}
        self.running.append(QueueStreamReader(SourceOptions(**usual | options), Told()))
        return self.running[-1]

    def crash(self) -> None:
        """The process of the last reader is gone: nothing is renewed, and nothing was left in order."""
        reader = self.running.pop()
        if reader._renewal is not None:
            reader._renewal.stop()
            reader._group.close()


@pytest.fixture
def reader(clean_server) -> Iterator[Readers]:
    readers = Readers(clean_server.url)
    yield readers
    for one in readers.running:
        one.stop()


def rows(reader: QueueStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    parts = reader.partitions(start, end)
    return [payload for part in parts for batch in reader.read(part) for payload, _ in batch]


TEN = ReadMaxRows(10)


def test_making_a_reader_has_no_effects(client, reader):
    one = reader(url="redis://127.0.0.1:1/0")
    pickle.dumps(one.__getstate__())
    assert client.keys() == []


def test_a_reader_travels_to_the_executors_without_its_connections(queue, reader):
    queue.publish_many(numbered(10))
    one = reader()
    parts = one.partitions({"batch": 0}, one.latestOffset({"batch": 0}, TEN))
    there = pickle.loads(pickle.dumps(one))
    assert [len(batch) for part in parts for batch in there.read(part)] == [10]


@pytest.mark.promise("A query skips messages that consumers with the same rules would not deliver.")
def test_what_consumers_would_not_deliver_is_not_read_either(queue, reader):
    """The rules of a queue are its consumers' options, so the source must be told them."""
    queue.publish("too old")
    one = reader(message_ttl_seconds=0.000001)
    assert one.latestOffset({"batch": 0}, TEN) == {"batch": 0}
    assert queue.stats().dead_letters == 1


BROKEN = b"\xff\xfe"


@pytest.mark.promise("With `invalidPayloads=dead_letters`, a payload that is not UTF-8 becomes a dead letter.")
@pytest.mark.parametrize("partitions", [1, 2])
def test_payloads_that_are_no_text_become_dead_letters_and_the_others_are_read(client, reader, partitions):
    """With a journal, tenants and headers; also if a whole batch is broken."""
    queue = RedisMessageQueue(QUEUE, client=client, partitions=partitions, journal=True, codec=bytes)
    queue.publish_many([BROKEN] * 12)
    queue.publish(b"text", tenant="acme")
    queue.publish(BROKEN, tenant="acme", headers={"a": "b"})
    queue.publish(b"\xc3\xa4")
    one, start, found = reader(invalid_payloads="dead_letters"), None, []
    one.prepareForTriggerAvailableNow()
    end = one.initialOffset()
    while end != start:
        start, end = end, one.latestOffset(end, ReadMaxRows(5))
        parts = one.partitions(start, end)
        pages = [in_part(one, part).read_batch(part.batch, part.start, part.stop) for part in parts]
        found += [Envelope(stored).payload for page in pages for stored in split_members(page)[0]]
        one.commit(end)
    assert sorted(found) == [b"text", b"\xc3\xa4"]
    stats = queue.stats()
    assert (stats.dead_letters, stats.pending, stats.processing) == (13, 0, 0)
    letters = queue.records()
    assert {(letter.reason, letter.payload) for letter in letters} == {("invalid_payload", BROKEN)}
    assert [letter.headers for letter in letters if letter.tenant == "acme"] == [{"a": "b"}]
    told = Counter(
        entry[b"event"]
        for number in range(partitions)
        for _, entry in client.xrange(queue.partition(number).key.journal)
    )
    assert told == {b"published": 15, b"claimed": 15, b"dead": 13, b"acked": 2}


def in_part(reader: QueueStreamReader, part: Any) -> GroupPart:
    return reader._group.parts[part.partition.number]


@pytest.mark.promise("With `invalidPayloads=dead_letters`, a payload that is not UTF-8 becomes a dead letter.")
@pytest.mark.parametrize("payloads", [[b"a", BROKEN, b"b"], [BROKEN]])
def test_a_query_that_failed_because_of_a_payload_goes_on_with_the_option(client, reader, payloads):
    """Its batch is in the checkpoint, and is read again, without the payload that nobody could read."""
    queue = RedisMessageQueue(QUEUE, client=client, codec=bytes)
    queue.publish_many(payloads)
    failed = reader()
    end = failed.latestOffset({"batch": 0}, TEN)
    reader.crash()
    again = reader(invalid_payloads="dead_letters")
    assert rows(again, {"batch": 0}, end) == [one.decode() for one in payloads if one != BROKEN]
    again.commit(end)
    assert (queue.stats().dead_letters, queue.stats().processing) == (1, 0)


def test_more_invalid_payloads_than_one_script_takes_are_all_rejected(client, reader, caplog):
    queue = RedisMessageQueue(QUEUE, client=client, codec=bytes)
    queue.publish_many([BROKEN, b"text"] * 1_200)
    one = reader(invalid_payloads="dead_letters")
    assert rows(one, {"batch": 0}, one.latestOffset({"batch": 0}, ReadMaxRows(2_400))) == ["text"] * 1_200
    assert queue.stats().dead_letters == 1_200
    assert counts_of(one) == {"claimed": 2_400, "replayed": 0, "acked": 0, "released": 0, "lag": 0}
    assert told_by(one)["rejected"] == 1_200
    assert sum("went to the dead letters (invalid_payload)" in text for text in caplog.messages) == 1_200


@pytest.mark.promise("A query skips messages that consumers with the same rules would not deliver.")
def test_a_queue_with_names_of_its_own_is_found(client, reader):
    """Its separator, its hash tag, its dead letters, which are cut as its consumers cut them."""
    queue = RedisMessageQueue(QUEUE, client=client, key_separator=":", hash_tag=True)
    names = {"key_separator": ":", "hash_tag": True}
    queue.publish_many(["first", "second"])
    rules = {"message_ttl_seconds": 0.000001, "dead_letter_queue": "{orders}:poison", "max_dead_letter_length": 1}
    strict = reader(**names, **rules)
    assert strict.latestOffset({"batch": 0}, TEN) == {"batch": 0}
    assert client.lrange("{orders}:poison", 0, -1) == [b"second"]
    strict.stop()
    queue.publish("third")
    one = reader(**names)
    assert rows(one, {"batch": 0}, one.latestOffset({"batch": 0}, TEN)) == ["third"]


def test_what_was_delivered_too_often_is_not_read(queue, reader):
    """Ten times if nobody says otherwise, as with consumers; 0 is for any number."""
    queue.publish("message 0")
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), queue.process_messages(1, wait_seconds=0):
            raise ZeroDivisionError
    assert reader(max_delivery_count=3).latestOffset({"batch": 0}, TEN) == {"batch": 0}
    assert queue.stats().dead_letters == 1


def test_batches_follow_each_other(queue, reader):
    queue.publish_many(numbered(25))
    one = reader()
    assert one.initialOffset() == {"batch": 0}
    seen, at = [], {"batch": 0}
    for _ in range(3):
        end = one.latestOffset(at, TEN)
        seen.append(rows(one, at, end))
        at = end
    assert seen == [numbered(10), numbered(10, 10), numbered(5, 20)]
    assert queue.stats().processing == 5
    assert one.latestOffset(at, TEN) == at
    assert queue.stats().processing == 0


@pytest.mark.promise("The next run adopts a claim that never reached Spark's offset log.")
def test_a_batch_that_never_reached_the_offset_log_is_recovered(queue, reader):
    queue.publish_many(numbered(25))
    reader().latestOffset({"batch": 0}, TEN)
    reader.crash()
    one = reader()
    assert one.initialOffset() == {"batch": 0}
    assert one.latestOffset({"batch": 0}, TEN) == {"batch": 1}
    assert rows(one, {"batch": 0}, {"batch": 1}) == numbered(10)
    assert queue.stats().pending == 15


def test_after_a_crash_partitions_may_be_the_first_call(queue, reader):
    queue.publish_many(numbered(25))
    first = reader()
    at = first.latestOffset({"batch": 0}, TEN)
    first.latestOffset(at, TEN)
    reader.crash()
    one = reader()
    assert rows(one, {"batch": 1}, {"batch": 2}) == numbered(10, 10)
    assert queue.stats().processing == 10  # the first claim was acknowledged, though no commit came for it


def test_what_an_older_run_does_late_is_refused(queue, reader):
    queue.publish_many(numbered(25))
    late = reader(lease_seconds=0.01)
    late.latestOffset({"batch": 0}, TEN)
    reader.crash()
    reader().latestOffset({"batch": 0}, TEN)
    late._renewal = SimpleNamespace(lost=None, stop=lambda: None)  # it does not know yet
    with pytest.raises(
        ConsumerGroupLostError, match="another query has acquired consumer group 'reports' of queue 'orders'"
    ):
        late.commit({"batch": 1})
    assert queue.stats().processing == 10


def test_a_run_that_has_lost_its_group_says_so_at_its_next_call(queue, reader, client):
    one = reader(lease_seconds=0.1)
    one.initialOffset()
    client.hset(queue.key.group("reports"), mapping={"epoch": 9, "holder": "another"})
    wait_for(lambda: one._renewal is not None and one._renewal.lost)
    with pytest.raises(ConsumerGroupLostError):
        one.latestOffset({"batch": 0}, TEN)


def test_a_reader_that_waits_is_woken_by_a_publish(queue, reader, client):
    one = reader()
    one.initialOffset()
    client.delete(queue.key.wakeup)
    timer = threading.Timer(0.2, lambda: queue.publish("message 0"))
    timer.start()
    assert one.latestOffset({"batch": 0}, TEN) == {"batch": 1}
    timer.join()


@pytest.mark.promise("An idle streaming query sends Redis some ten commands a second, those in its scripts included.")
@pytest.mark.parametrize("journal", [False, True], ids=["", "with a journal"])
def test_an_idle_query_costs_few_commands(client, reader, monkeypatch, journal):
    """Counted for each time that it has waited, which is a second. Its lease is renewed beside it, every 2.5 s."""
    RedisMessageQueue(QUEUE, client=client, journal=journal).publish("message 0")
    monkeypatch.setattr(consumer_group, "_WAIT_SECONDS", 0.02)
    one = reader(lease_seconds=3_600)
    end = one.latestOffset({"batch": 0}, TEN)
    one.commit(end)
    for _ in range(2):  # the first look after a batch does not wait before it
        one.latestOffset(end, TEN)
        one.reportLatestOffset()
    client.config_resetstat()
    for _ in range(20):
        assert one.latestOffset(end, TEN) == end
        assert one.reportLatestOffset() is not None
    sent = sum(command["calls"] for command in client.info("commandstats").values())
    assert sent <= 8 * 20 + 1  # and the reset


@pytest.mark.promise("`AvailableNow` reads what is pending at its start and nothing later.")
def test_available_now_stops_at_the_depth_noted_at_its_start(queue, reader):
    queue.publish_many(numbered(15))
    one = reader()
    one.prepareForTriggerAvailableNow()
    queue.publish_many(numbered(15, 15))
    at, sizes = {"batch": 0}, []
    while (end := one.latestOffset(at, TEN)) != at:
        sizes.append(len(rows(one, at, end)))
        at = end
    assert sizes == [10, 5]
    assert queue.stats().pending == 15
    assert one._renewal is None  # so that the next run need not wait for the lease


def test_a_replay_does_not_count_against_the_depth_of_available_now(queue, reader):
    queue.publish_many(numbered(15))
    reader().latestOffset({"batch": 0}, TEN)
    reader.crash()
    one = reader()
    one.prepareForTriggerAvailableNow()
    assert one.latestOffset({"batch": 0}, TEN) == {"batch": 1}
    assert rows(one, {"batch": 1}, one.latestOffset({"batch": 1}, TEN)) == numbered(5, 10)


def test_a_trigger_that_runs_once_takes_everything_that_waits(queue, reader):
    queue.publish_many(numbered(12_345))
    one = reader()
    end = one.latestOffset({"batch": 0}, ReadAllAvailable())
    assert rows(one, {"batch": 0}, end) == numbered(12_345)


COUNTS = ("claimed", "replayed", "acked", "released", "lag")


def told_by(one: QueueStreamReader) -> dict[str, Any]:
    told = one.reportLatestOffset()
    assert told is not None
    json.dumps(told)
    return told


def counts_of(one: QueueStreamReader) -> dict[str, int]:
    return {name: told_by(one)[name] for name in COUNTS}


@pytest.mark.promise("The progress of a streaming query says what it has claimed, replayed, acked and released.")
def test_the_report_shows_what_a_run_has_done(queue, reader, client):
    queue.publish_many(numbered(25))
    one = reader()
    assert rows(one, {"batch": 0}, one.latestOffset({"batch": 0}, TEN)) == numbered(10)
    assert counts_of(one) == {"claimed": 10, "replayed": 0, "acked": 0, "released": 0, "lag": 15}
    told = told_by(one)
    assert (told["batch"], told["queue"], told["consumer_group"], told["oldest_seconds"] > 0) == (1, QUEUE, GROUP, True)
    one.latestOffset({"batch": 1}, TEN)
    assert counts_of(one) == {"claimed": 20, "replayed": 0, "acked": 10, "released": 0, "lag": 5}
    one.stop()

    again = reader()  # its checkpoint has batch 2, which Spark may plan more than once
    for _ in range(2):
        assert rows(again, {"batch": 1}, {"batch": 2}) == numbered(10, 10)
    again.latestOffset({"batch": 2}, TEN)
    assert counts_of(again) == {"claimed": 5, "replayed": 10, "acked": 10, "released": 0, "lag": 0}
    again.stop()

    lost = reader(fail_on_data_loss=False)  # its checkpoint is ahead of the server, which still has batch 3
    lost.partitions({"batch": 8}, {"batch": 9})
    assert counts_of(lost) == {"claimed": 0, "replayed": 0, "acked": 0, "released": 5, "lag": 5}


def test_a_batch_that_lost_messages_is_a_data_loss(queue, reader, client):
    queue.publish_many(numbered(10))
    one = reader()
    (part,) = one.partitions({"batch": 0}, one.latestOffset({"batch": 0}, TEN))
    client.rpop(queue.key.members("reports", 1), 3)
    with pytest.raises(DataLossError, match=r"batch 1 should have 10 messages .* but 7 are there\. Start with a new"):
        list(one.read(part))
    assert sum(len(batch) for batch in reader(fail_on_data_loss=False).read(part)) == 7


def lost_by_flush(queue: RedisMessageQueue, client: Any) -> None:
    client.flushall()


def lost_by_release(queue: RedisMessageQueue, client: Any) -> None:
    groups = GroupPart(client, SourceOptions(url="redis://unused", queue=QUEUE, consumer_group="reports"))
    groups.acquire_group()
    groups.release_batches()
    groups.release_lease()


@pytest.mark.promise("Missing messages of a batch raise `DataLossError`, or are skipped with `failOnDataLoss=false`.")
@pytest.mark.parametrize(
    ("lose", "told"),
    [
        (lost_by_flush, r"batch 1 is in the checkpoint but not in Redis, where the last batch is 0"),
        (lost_by_release, r"an operator released batch 1, and its messages went back to the queue"),
    ],
)
def test_a_batch_that_is_gone_is_a_data_loss_and_can_be_given_up(lose, told, queue, reader, client):
    queue.publish_many(numbered(10))
    reader().latestOffset({"batch": 0}, TEN)
    reader.crash()
    lose(queue, client)
    with pytest.raises(DataLossError, match=told):
        reader().partitions({"batch": 0}, {"batch": 1})
    reader.running.pop().stop()
    one = reader(fail_on_data_loss=False)
    assert one.partitions({"batch": 0}, {"batch": 1}) == []
    queue.publish("the next")
    end = one.latestOffset({"batch": 1}, ReadMaxRows(20))
    assert end == {"batch": 2}
    assert rows(one, {"batch": 1}, end)[-1] == "the next"


def test_a_checkpoint_that_is_older_than_what_was_acked_is_a_data_loss(queue, reader):
    queue.publish_many(numbered(20))
    one = reader()
    at = one.latestOffset({"batch": 0}, TEN)
    one.latestOffset(at, TEN)
    with pytest.raises(DataLossError, match="batch 1 was acked before, and its messages are gone"):
        one.partitions({"batch": 0}, {"batch": 1})


# Slices


@pytest.mark.parametrize(
    ("counts", "wanted", "parts"),
    [
        ([3], None, [(0, 3)]),
        ([30], None, [(0, 10), (10, 20), (20, 30)]),
        ([10], 3, [(0, 3), (3, 6), (6, 10)]),
        ([10], 2, [(0, 5), (5, 10)]),
        ([3, 3], 2, [(0, 3), (0, 3)]),
        ([2], 5, [(0, 1), (1, 2)]),
    ],
)
def test_batches_are_read_in_slices(client, reader, monkeypatch, counts, wanted, parts):
    """At least as many as wanted, if there are as many messages, and of so many messages at most."""
    monkeypatch.setattr(consumer_group, "_ROWS_A_TASK", 12)
    queue = RedisMessageQueue(QUEUE, client=client, partitions=len(counts))
    for number, count in enumerate(counts):
        queue.partition(number).publish_many(numbered(count))
    one = reader(min_partitions=wanted)
    start = one.initialOffset()
    found = one.partitions(start, one.latestOffset(start, ReadMaxRows(100)))
    assert [(part.start, part.stop) for part in found if isinstance(part, BatchSlice)] == parts


def test_stored_sizes_that_are_damaged_are_read_as_far_as_they_go():
    assert BatchSize.read(None) == BatchSize.read(b"") == BatchSize.read(b"x:y") == BatchSize(0)
    assert BatchSize.read(b"7:1:2:0:34:9:9").edges == [(0, 4), (4, 8)]


def in_tasks(one: QueueStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[str]]:
    """What each task reads, by Spark's number of it."""
    return [[row[0] for batch in one.read(part) for row in batch] for part in one.partitions(start, end)]


@pytest.mark.promise(
    "A replay of a micro-batch reads the same rows in the same tasks, whatever the options are by then."
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_replay_reads_the_slices_of_the_run_before_with_another_min_partitions(client, reader, partitions):
    """The sink makes its keys from the number of the task: other slices would publish rows twice."""
    queue = RedisMessageQueue(QUEUE, client=client, partitions=partitions)
    for number in range(partitions):
        queue.partition(number).publish_many([f"{number}.{place}" for place in range(20)])
    first = reader(min_partitions=4)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(10 * partitions))
    before = in_tasks(first, start, end)
    assert len(before) >= 4
    reader.crash()
    again = reader(min_partitions=9)
    assert in_tasks(again, start, end) == before
    following = again.latestOffset(end, ReadMaxRows(10 * partitions))
    assert len(again.partitions(end, following)) >= 9, "the new option counts from the next batch"


@pytest.mark.promise(
    "A replay of a micro-batch reads the same rows in the same tasks, whatever the options are by then."
)
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_replay_without_invalid_payloads_has_every_other_row_in_its_slice(client, reader, partitions):
    queue = RedisMessageQueue(QUEUE, client=client, partitions=partitions, codec=bytes)
    for number in range(partitions):
        texts = [b"%d.%d" % (number, place) for place in range(6)]
        queue.partition(number).publish_many([BROKEN, *texts[:2], BROKEN, *texts[2:], BROKEN, BROKEN])
    first = reader(min_partitions=5 * partitions)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(10 * partitions))
    slices = first.partitions(start, end)
    assert len(slices) == 5 * partitions
    reader.crash()
    again = reader(invalid_payloads="dead_letters", min_partitions=1)
    assert again.partitions(start, end) == slices, "slices that become empty stay"
    found = in_tasks(again, start, end)
    assert found == [
        row
        for number in range(partitions)
        for row in (
            [f"{number}.0"],
            [f"{number}.1"],
            [f"{number}.2", f"{number}.3"],
            [f"{number}.4", f"{number}.5"],
            [],
        )
    ]
    again.commit(end)
    assert (queue.stats().dead_letters, queue.stats().processing) == (4 * partitions, 0)


def test_a_delivery_count_stands_before_messages_that_came_before():
    assert split_members([b"\x80plain", b"-", b"12:\x82often"]) == ([b"\x80plain", b"\x82often"], [1, 12])


# The listener


def progress_of(**told: Any) -> StreamProgress:
    counts: dict[str, Any] = dict.fromkeys((*COUNTS, "rejected"), 0) | {"oldest_seconds": None}
    return StreamProgress(
        **{"query": None, "run_id": "1", "queue": "q", "consumer_group": "g", "batch": 1} | counts | told
    )


def test_a_new_run_counts_from_zero_and_the_metrics_go_on():
    registry = CollectorRegistry()
    metrics = StreamMetrics(registry=registry)
    for told in (
        {"claimed": 5, "acked": 2, "lag": 7, "oldest_seconds": 1.5},
        {"claimed": 9, "acked": 9},
        {"claimed": 3, "run_id": "2", "batch": 4},
    ):
        metrics.on_progress(progress_of(**told))
    labels = {"queue": "q", "consumer_group": "g"}
    values = {one: registry.get_sample_value(f"rmq_stream_{one}", labels) for one in ("claimed_total", "acked_total")}
    assert values == {"claimed_total": 12, "acked_total": 9}
    gauges = {one: registry.get_sample_value(f"rmq_stream_{one}", labels) for one in ("lag", "oldest_seconds", "batch")}
    assert gauges == {"lag": 0, "oldest_seconds": 0, "batch": 4}
    with pytest.raises(ConfigurationError, match="one StreamMetrics for each registry"):
        StreamMetrics(registry=registry)


def spark_progress(*offsets: str | None) -> Any:
    sources = [SimpleNamespace(latestOffset=one) for one in offsets]
    return SimpleNamespace(progress=SimpleNamespace(name="orders", runId="run", sources=sources))


def test_other_sources_are_left_out_and_a_callback_that_fails_is_logged(queue, reader, caplog):
    told = told_by(reader())
    heard: list[StreamProgress] = []
    QueueListener(heard.append).onQueryProgress(spark_progress(None, "12", '{"t-0": 5}', json.dumps(told)))
    assert [(one.query, one.run_id, one.queue) for one in heard] == [("orders", "run", QUEUE)]
    QueueListener(lambda progress: 1 // 0).onQueryProgress(spark_progress(json.dumps(told)))
    assert "the callback for the progress of a streaming query failed" in caplog.text
    with caplog.at_level(logging.INFO):
        QueueListener().onQueryProgress(spark_progress(json.dumps(told)))
    assert "orders: consumer group reports has claimed 0 messages" in caplog.text


# With Spark
